package disk

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"
)

// progressInterval is how often the log hears of a long look through the file.
const progressInterval = 5 * time.Second

// scan is the look through the file at the start.
type scan struct {
	t        *Tier
	headers  []regionFound // newest first
	deadline time.Time

	mu     sync.Mutex // guards what follows
	next   int
	err    error
	logged time.Time
	lost   map[uint32]bool // regions that can't be read
}

// regionFound is a region with a header.
type regionFound struct {
	id       uint32
	sequence uint64
}

// recordFound is a record with its place.
type recordFound struct {
	header recordHeader
	place  place
}

// scan finds the chunks of the file, the newest regions first. It returns false
// when the disk failed: then nothing is known. The tier serves afterwards.
func (t *Tier) scan(ctx context.Context) bool {
	began := t.opts.Now()
	s := &scan{t: t, deadline: began.Add(t.opts.ScanDeadline), logged: began, lost: map[uint32]bool{}}
	if err := s.findRegions(ctx); err != nil {
		return false
	}
	var walkers sync.WaitGroup
	for range t.opts.Readers {
		walkers.Go(func() { s.walkRegions(ctx) })
	}
	walkers.Wait()
	if s.err != nil || ctx.Err() != nil {
		return false
	}
	t.mu.Lock()
	// The policy learns of the regions in the order that they were written.
	for i := len(s.headers) - 1; i >= 0; i-- {
		id := s.headers[i].id
		switch {
		case i >= s.next:
			t.log.idle = append(t.log.idle, id) // not seen in time
		case !s.lost[id]:
			t.log.open = id
			t.log.seal()
		}
	}
	t.stats.RecoveredChunks = uint64(t.catalog.live)
	t.phase = serving
	t.sweep = true
	stats := t.stats
	t.mu.Unlock()
	t.opts.Log.Info("the disk tier is in service", "chunks", stats.RecoveredChunks, "dropped", stats.DroppedOnes,
		"regions", min(s.next, len(s.headers)), "regions_given_up", max(len(s.headers)-s.next, 0), "took", t.opts.Now().Sub(began))
	t.poke()
	return true
}

// findRegions reads the header of every region that the file has.
func (s *scan) findRegions(ctx context.Context) error {
	t := s.t
	l := t.readers.take(ctx, t.opts.ReadDeadline)
	if l == nil {
		return ErrOutOfService
	}
	page := l.buf[:PageBytes]
	var idle []uint32
	for id := range uint32(len(t.log.regions)) {
		if err := s.over(ctx); err != nil {
			l.release()
			return err
		}
		at := t.offset(place{region: id})
		err := l.run(t.opts.ReadDeadline, func() error { return readAll(t.file, page, at) })
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break // the file ends here
		}
		if err != nil {
			t.failed("scan", err)
			if kindOf(err) == KindTimeout {
				return err
			}
			if !t.healthy() {
				l.release()
				return err
			}
			s.lost[id] = true
			continue
		}
		h, err := decodeRegionHeader(page)
		if err != nil || h.identity != t.identity {
			idle = append(idle, id)
			continue
		}
		s.headers = append(s.headers, regionFound{id, h.sequence})
	}
	l.release()
	slices.SortFunc(s.headers, func(a, b regionFound) int { return cmp.Compare(b.sequence, a.sequence) })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log.unused = uint32(len(s.headers) + len(idle) + len(s.lost))
	t.log.idle = idle
	if len(s.headers) > 0 {
		t.log.sequence = s.headers[0].sequence
	}
	for _, r := range s.headers {
		t.log.regions[r.id].sequence = r.sequence
	}
	t.stats.ScanRegions, t.stats.ScannedRegions = uint64(len(s.headers)), 0
	t.stats.RecoveredChunks, t.stats.DroppedOnes = 0, 0
	return nil
}

// walkRegions takes region after region until none is left.
func (s *scan) walkRegions(ctx context.Context) {
	t := s.t
	l := t.readers.take(ctx, t.opts.ReadDeadline)
	if l == nil {
		s.fail(errLate)
		return
	}
	for {
		s.mu.Lock()
		i := s.next
		stop := i == len(s.headers) || s.err != nil || s.over(ctx) != nil
		if !stop {
			s.next++
			s.report(i)
		}
		s.mu.Unlock()
		if stop {
			break
		}
		w := walk{t: t, l: l, region: s.headers[i], verify: i == 0, page: 1, over: func() bool { return s.over(ctx) != nil }}
		records, err := w.run()
		if err != nil {
			t.failed("scan", err)
			if kindOf(err) == KindTimeout {
				s.fail(err)
				return // the lane is the call's
			}
			if s.lose(s.headers[i].id); !t.healthy() {
				s.fail(err)
			}
			continue
		}
		t.mu.Lock()
		t.stats.ScannedRegions++
		t.log.regions[s.headers[i].id].pages = w.page
		for k := range records {
			t.recoverLocked(&records[k])
		}
		t.mu.Unlock()
	}
	l.release()
}

// over says why to look no further: the tier is being closed, or it takes too
// long.
func (s *scan) over(ctx context.Context) error {
	if ctx.Err() != nil {
		return ErrClosed
	}
	if s.t.opts.Now().After(s.deadline) {
		return errLate
	}
	return nil
}

func (s *scan) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

// lose leaves a region alone that can't be read.
func (s *scan) lose(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost[id] = true
}

func (t *Tier) healthy() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.breaker.state == inService
}

func (s *scan) report(done int) {
	if now := s.t.opts.Now(); now.Sub(s.logged) >= progressInterval {
		s.logged = now
		s.t.opts.Log.Info("the disk tier looks through its file", "regions_done", done, "regions", len(s.headers))
	}
}

// recoverLocked takes a record up that was found. Of two of a chunk the later one
// counts.
func (t *Tier) recoverLocked(r *recordFound) {
	h := &r.header
	if h.resets > t.resets.count {
		// The file of resets is older than this record: a reset was not noted, nobody
		// knows whose. What was handed over before it does not count.
		t.resets.count = h.resets
		t.resets.clear()
		t.resetsDirty = true
	}
	if h.removed || !t.resets.counts(h.Namespace, h.resets) || t.expired(h.Expires) {
		t.stats.DroppedOnes++
		return
	}
	if id, known := t.catalog.find(keyOf(&h.Key)); known {
		e := &t.catalog.entries[id]
		other := t.log.regions[e.region].sequence
		if other > r.place.sequence || other == r.place.sequence && e.page > r.place.page {
			t.unwriteLocked(r.place)
			return
		}
	}
	if !t.catalog.full() {
		t.enterLocked(h, r.place)
	}
}

// walk goes along the records of a region.
type walk struct {
	t      *Tier
	l      *lane
	region regionFound
	// verify reads and sums the bytes too: a write may have been cut short.
	verify bool
	page   uint32      // of the next record; at the end how many are used
	over   func() bool // asked before each read: what follows is given up

	from, to uint32 // pages in the buffer
	last     uint32 // pages of the record before
}

// smallRecord is the length in pages below which a read takes in the records
// behind.
const (
	smallRecord = 64
	smallWindow = 256
)

// errOver: there is no time left to look further.
var errOver = errors.New("not looked through in time")

func (w *walk) run() ([]recordFound, error) {
	var found []recordFound
	for w.page < w.t.log.regionPages {
		b, err := w.at(w.page)
		if errors.Is(err, errOver) {
			break
		}
		if err != nil {
			return nil, err
		}
		h, written := w.record(b)
		if !written {
			break
		}
		r := recordFound{h, place{region: w.region.id, page: w.page, pages: h.pages(), sequence: h.sequence}}
		if w.verify && !h.removed {
			whole, err := w.whole(&r)
			if errors.Is(err, errOver) {
				break
			}
			if err != nil {
				return nil, err
			}
			if !whole {
				w.t.mu.Lock()
				w.t.stats.DroppedOnes++
				w.t.mu.Unlock()
				break
			}
		}
		found = append(found, r)
		w.last = h.pages()
		w.page += w.last
	}
	return found, nil
}

// record reads a header. False: nothing was written from here on.
func (w *walk) record(b []byte) (recordHeader, bool) {
	h, err := decodeRecord(b)
	return h, err == nil && h.sequence == w.region.sequence && h.pages() <= w.t.log.regionPages-w.page
}

// at returns a page of the region, and reads it if need be.
func (w *walk) at(page uint32) ([]byte, error) {
	if page < w.from || page >= w.to {
		if w.over() {
			return nil, errOver
		}
		n := uint32(1)
		if w.verify || w.last <= smallRecord {
			n = smallWindow
		}
		w.from = page
		w.to = page + min(n, w.t.log.regionPages-page, uint32(len(w.l.buf)/PageBytes))
		bytes, at := w.l.buf[:int(w.to-w.from)*PageBytes], w.t.offset(place{region: w.region.id, page: page})
		err := w.l.run(w.t.opts.ReadDeadline, func() error { return readAll(w.t.file, bytes, at) })
		if kindOf(err) == KindShort && w.to > page+1 {
			w.last, w.verify = smallRecord+1, false // the file has been cut: page by page up to its end
			w.from, w.to = 0, 0
			return w.at(page)
		}
		if kindOf(err) == KindShort {
			clear(bytes)
		} else if err != nil {
			return nil, err
		}
	}
	return w.l.buf[int(page-w.from)*PageBytes:][:PageBytes], nil
}

// whole tells whether a record's bytes are those of its checksums.
func (w *walk) whole(r *recordFound) (bool, error) {
	to := scatter{shardBytes: int(r.header.ShardBytes), sums: make([]uint32, len(r.header.Checksums))}
	for i := range r.place.pages {
		b, err := w.at(r.place.page + i)
		if err != nil {
			return false, err
		}
		if i == 0 {
			b = b[headerBytes:]
		}
		to.write(b)
	}
	return slices.Equal(to.sums, r.header.Checksums), nil
}
