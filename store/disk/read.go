package disk

import (
	"context"
	"slices"
	"sync"
	"time"
)

// fetch is a chunk that waits to be read.
type fetch struct {
	key   Key
	place place
	into  [][]byte
	done  func(*Chunk, error)
	asked time.Time
}

// Fetch reads a chunk into memory for its shards, which have the right lengths.
// False: it is not there, or too many wait. done is called once, from another
// goroutine and under no lock of the tier's, when into is not written to any
// more. With an error the memory's content is undefined.
func (t *Tier) Fetch(key Key, into [][]byte, done func(*Chunk, error)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.findLocked(&key)
	if !ok || len(into) == 0 {
		return false
	}
	e := &t.catalog.entries[id]
	r := &t.log.regions[e.region]
	if pagesOf(len(into[0]), len(into)) != e.pages {
		return false // another geometry; the header would say so too
	}
	f := &fetch{
		key: key, into: into, done: done, asked: t.opts.Now(),
		place: place{region: e.region, page: e.page, pages: e.pages, sequence: r.sequence},
	}
	select {
	case t.fetches <- f:
	default:
		return false
	}
	r.readers++
	t.fetchingBytes += uint64(e.pages) * PageBytes
	return true
}

// finishFetch answers a fetch.
func (t *Tier) finishFetch(f *fetch, c *Chunk, err error) {
	t.mu.Lock()
	t.fetchingBytes -= uint64(f.place.pages) * PageBytes
	t.log.regions[f.place.region].readers--
	if err == nil {
		t.stats.ReadChunks++
		t.stats.ReadBytes += uint64(f.place.pages) * PageBytes
		t.breaker.succeeded()
		t.log.touch(f.place.region)
	}
	t.mu.Unlock()
	f.done(c, err)
}

// latePatience is how many times the patience a fetch may have waited and is
// begun all the same: about as long as an engine waits for a load.
const latePatience = 4

// runReaders begins fetches in their order, one on each free lane.
func (t *Tier) runReaders(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	for {
		var f *fetch
		select {
		case <-ctx.Done():
			t.drain(ErrClosed)
			return
		case f = <-t.fetches:
		}
		if !t.mayRead() {
			t.finishFetch(f, nil, ErrOutOfService)
			continue
		}
		if t.opts.Now().Sub(f.asked) > latePatience*t.opts.Patience {
			t.mu.Lock()
			t.stats.LateReads++
			t.mu.Unlock()
			t.finishFetch(f, nil, errLate)
			continue
		}
		l := t.readers.take(ctx, t.opts.ReadDeadline)
		if l == nil {
			if ctx.Err() == nil {
				t.failed("read", errLate) // all before hang
			}
			t.finishFetch(f, nil, ErrOutOfService)
			continue
		}
		under.Go(func() { t.read(l, f) })
	}
}

func (t *Tier) mayRead() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.usableLocked()
}

// read reads a record on a lane.
func (t *Tier) read(l *lane, f *fetch) {
	bytes := int(f.place.pages) * PageBytes
	t.mu.Lock()
	t.speed.begin(t.opts.Now())
	t.mu.Unlock()
	c, l, err := t.readRecord(l, f)
	if l != nil {
		l.release()
	}
	t.mu.Lock()
	if err != nil {
		bytes = 0
	}
	t.speed.end(t.opts.Now(), bytes)
	t.mu.Unlock()
	if err != nil {
		t.failed("read", err)
		if kindOf(err) != KindTimeout {
			t.condemn(f)
		}
	}
	t.finishFetch(f, c, err)
}

// readRecord returns a nil lane when the call hangs.
func (t *Tier) readRecord(l *lane, f *fetch) (*Chunk, *lane, error) {
	file, at, left := t.file, t.offset(f.place), int(f.place.pages)*PageBytes
	var h recordHeader
	var to *scatter
	for left > 0 {
		part, here := l.buf[:min(left, len(l.buf))], at
		if err := l.run(t.opts.ReadDeadline, func() error { return readAll(file, part, here) }); err != nil {
			if kindOf(err) == KindTimeout {
				l = nil
			}
			return nil, l, err
		}
		payload := part
		if to == nil {
			var err error
			h, err = decodeRecord(part)
			if err != nil || h.removed || h.Key != f.key || h.sequence != f.place.sequence || h.pages() != f.place.pages ||
				len(h.Checksums) != len(f.into) || int(h.ShardBytes) != len(f.into[0]) {
				return nil, l, ErrDamaged
			}
			to = &scatter{shards: f.into, shardBytes: int(h.ShardBytes), sums: make([]uint32, len(f.into))}
			payload = part[headerBytes:]
		}
		to.write(payload)
		at += int64(len(part))
		left -= len(part)
	}
	if !slices.Equal(to.sums, h.Checksums) {
		return nil, l, ErrDamaged
	}
	return &h.Chunk, l, nil
}

// condemn takes a chunk that can't be read out of the catalog.
func (t *Tier) condemn(f *fetch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.catalog.find(keyOf(&f.key))
	if !ok {
		return
	}
	if e := &t.catalog.entries[id]; e.region == f.place.region && e.page == f.place.page {
		t.removeLocked(id)
	}
}
