package disk

import (
	"context"
	"errors"
	"time"
)

// fullCooldown is how long a full disk is not asked for more room.
const fullCooldown = 30 * time.Second

// turn is a region whose turn it is to be filled.
type turn struct {
	id     uint32
	from   origin
	header regionHeader
	// allocated: the disk has room for all of its range.
	allocated bool
}

// makeRoom sees to it that the open region has room for a record. The lane that
// it returns is nil when a call hangs.
func (w *writer) makeRoom(ctx context.Context, l *lane, pages uint32) (*lane, error) {
	for {
		next, err := w.t.nextRegion(pages)
		if err != nil || next == nil {
			return l, err
		}
		if err = ctx.Err(); err != nil {
			err = ErrClosed
		} else {
			err = w.prepare(l, next)
		}
		switch {
		case err == nil:
			w.t.openRegion(next)
		case w.t.returnRegion(next, err): // another may do
		default:
			return w.failed(l, "begin region", err)
		}
	}
}

// nextRegion closes the open region, if it has no room for so many pages, and
// names the one to be filled next. Nil: there is room.
func (t *Tier) nextRegion(pages uint32) (*turn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.log.room() >= pages {
		return nil, nil
	}
	t.log.seal()
	if t.log.limited() && !t.opts.Now().Before(t.regrowAt) {
		t.log.regrow()
	}
	id, from, ok := t.log.next()
	if !ok {
		if t.log.limited() {
			t.fullUntil = t.regrowAt
		}
		return nil, ErrFull
	}
	t.log.sequence++
	return &turn{id: id, from: from, header: regionHeader{identity: t.identity, sequence: t.log.sequence}}, nil
}

// prepare allocates a region and writes its header. One that was filled before is
// allocated again, which costs little: the file may have been cut, or copied with
// holes, and then the disk would turn out to be full in the middle of it.
func (w *writer) prepare(l *lane, next *turn) error {
	t := w.t
	file, bytes, at := t.file, int64(t.regionBytes), t.offset(place{region: next.id})
	err := l.run(t.opts.WriteDeadline, func() error { return file.Allocate(at, bytes) })
	if err == nil {
		next.allocated = true
		page := l.buf[:PageBytes]
		next.header.encode(page)
		err = l.run(t.opts.WriteDeadline, func() error { return writeAll(file, page, at) })
	}
	if kindOf(err) == KindFull && next.from == fresh {
		// What it could have of the region would be of no use to us or others.
		err = errors.Join(err, l.run(t.opts.WriteDeadline, func() error { return file.Limit(at) }))
	}
	return err
}

// openRegion makes a region that is prepared the open one, and forgets what it
// had: until now all of it was on the disk.
func (t *Tier) openRegion(next *turn) {
	t.mu.Lock()
	if next.from == filled {
		t.log.closing = noRegion
		t.dropRegionLocked(next.id)
	}
	t.beginRegionLocked(next.id, next.header.sequence)
	room := t.full && !t.log.limited()
	if room {
		t.full = false
	}
	regions := t.log.unused
	t.mu.Unlock()
	if room {
		t.opts.Log.Info("the disk has room for the disk tier again", "regions", regions)
	}
}

// returnRegion takes a region back that could not be prepared. True: that is because
// the disk is full, and there may be another that needs no more room.
func (t *Tier) returnRegion(next *turn, err error) bool {
	// Where nothing can be reserved, it shows at the first write.
	full := kindOf(err) == KindFull && (!next.allocated || next.from == fresh)
	t.mu.Lock()
	t.log.giveBack(next.id, next.from, full)
	if !full {
		t.mu.Unlock()
		return false
	}
	t.stats.Errors[KindFull]++
	t.regrowAt = t.opts.Now().Add(fullCooldown)
	first, regions := !t.full, t.log.unused
	t.full = true
	t.mu.Unlock()
	if first {
		t.opts.Log.Warn("the disk is full: the disk tier stays smaller than it was asked to be; lower disk_bytes or free space",
			"regions", regions, "region_bytes", t.regionBytes, "error", err)
	}
	return true
}

// failed notes an error of a write. The lane that it returns is nil when the call
// hangs.
func (w *writer) failed(l *lane, call string, err error) (*lane, error) {
	if errors.Is(err, ErrClosed) {
		return l, err // not the disk's fault
	}
	w.t.failed(call, err)
	switch kindOf(err) {
	case KindTimeout:
		l = nil
	case KindFull:
		w.t.mu.Lock()
		w.t.fullUntil = w.t.opts.Now().Add(fullCooldown)
		w.t.mu.Unlock()
	}
	return l, err
}
