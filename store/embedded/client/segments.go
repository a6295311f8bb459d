package client

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
)

// segment is a segment this client has, or had, mapped.
type segment struct {
	info    connector.SegmentInfo
	mapping Mapping // nil once closed
	held    int     // references and tickets in it, and the goroutine of warm
	cold    func()  // ends warm
}

// view is a segment's data area as it was mapped when Segments was called.
type view []byte

// Data implements store.Segment.
func (v view) Data() []byte { return v }

func (s *segment) close() error {
	if s.mapping == nil {
		return nil
	}
	err := s.mapping.Close()
	s.mapping = nil
	return err
}

// takeSegments maps what the master sent, unless it is mapped already.
func (c *Client) takeSegments(infos []connector.SegmentInfo, fds []int) error {
	if len(infos) != 1 || len(fds) != 1 {
		for _, fd := range fds {
			c.cfg.Edge.CloseFD(fd)
		}
		return fmt.Errorf("%d segments with %d descriptors; this version of the store has one", len(infos), len(fds))
	}
	info, fd := infos[0], fds[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current >= 0 && c.segments[c.current].info.UUID == info.UUID {
		c.cfg.Edge.CloseFD(fd)
		return nil
	}
	mapping, err := c.cfg.Edge.Map(fd, info.Bytes)
	if err != nil {
		return fmt.Errorf("map store segment: %w", err)
	}
	if info.DataOffset > uint64(len(mapping.Bytes())) {
		_ = mapping.Close()
		return fmt.Errorf("map store segment: data offset %d of %d bytes", info.DataOffset, info.Bytes)
	}
	old := c.current
	c.segments = append(c.segments, &segment{info: info, mapping: mapping})
	c.current = len(c.segments) - 1
	c.startWarmingLocked(c.current)
	if old >= 0 {
		c.segments[old].stopWarming()
		c.cfg.Log.Warn("the store started empty: its segment is a new one", "segment", info.UUID)
		c.closeIdleLocked(old)
	}
	return nil
}

func (c *Client) closeIdleLocked(i int) {
	s := c.segments[i]
	if i == c.current || s.held > 0 || s.mapping == nil {
		return
	}
	if err := s.close(); err != nil {
		c.cfg.Log.Warn("unmap an old store segment", "error", err)
	}
}

// declaration lists what is held in the current segment.
func (c *Client) declaration() *connector.Declare {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &connector.Declare{Type: connector.TypeDeclare, Client: c.cfg.ID, UUID: c.segments[c.current].info.UUID}
	for _, h := range c.held {
		switch {
		case h.segment != c.current:
		case h.put:
			d.Puts = append(d.Puts, h.masterID)
		default:
			d.Reads = append(d.Reads, h.masterID)
		}
	}
	return d
}

// Segments implements store.Store.
func (c *Client) Segments() []store.Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]store.Segment, len(c.segments))
	for i, s := range c.segments {
		out[i] = view(nil)
		if s.mapping != nil {
			out[i] = view(s.mapping.Bytes()[s.info.DataOffset:])
		}
	}
	return out
}

// Kept returns the master's segment for a new master to adopt; ok is false when
// there is none. The descriptor stays the client's.
func (c *Client) Kept() (info connector.SegmentInfo, fd int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current < 0 || c.closed {
		return connector.SegmentInfo{}, 0, false
	}
	s := c.segments[c.current]
	return s.info, s.mapping.FD(), true
}

// hold notes references or tickets of the session and replaces the master's
// numbers in ids by numbers that are never used twice in the client's life: a
// new master counts anew. It returns false when the session has ended meanwhile,
// so that they are the master's again.
func (c *Client) hold(session uint64, ids []uint64, put bool) (segment int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holdLocked(session, ids, put)
}

func (c *Client) holdLocked(session uint64, ids []uint64, put bool) (segment int, ok bool) {
	if c.session != session {
		return 0, false
	}
	for i, id := range ids {
		c.lastID++
		c.held[c.lastID] = holding{masterID: id, segment: c.current, put: put}
		ids[i] = c.lastID
	}
	c.segments[c.current].held += len(ids)
	return c.current, true
}

// drop forgets references or tickets. It returns the master's numbers of those
// that the open session has to tell it of, and their positions in ids.
func (c *Client) drop(ids []uint64) (masterIDs []uint64, positions []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropLocked(ids)
}

func (c *Client) dropLocked(ids []uint64) (masterIDs []uint64, positions []int) {
	for i, id := range ids {
		h, ok := c.held[id]
		if !ok {
			continue
		}
		delete(c.held, id)
		c.segments[h.segment].held--
		if h.segment == c.current {
			masterIDs, positions = append(masterIDs, h.masterID), append(positions, i)
		} else {
			c.closeIdleLocked(h.segment)
		}
	}
	return masterIDs, positions
}

// dropped returns the master's numbers in declared that are not held any
// more.
func (c *Client) dropped(declared []uint64, put bool) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := make(map[uint64]bool, len(c.held))
	for _, h := range c.held {
		if h.put == put && h.segment == c.current {
			held[h.masterID] = true
		}
	}
	var out []uint64
	for _, id := range declared {
		if !held[id] {
			out = append(out, id)
		}
	}
	return out
}
