package disk

import (
	"context"
	"errors"
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

// ReadEvent returns a channel that is closed when the next fetch has been answered.
func (t *Tier) ReadEvent() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readEvent == nil {
		t.readEvent = make(chan struct{})
	}
	return t.readEvent
}

// finishFetch answers a fetch.
func (t *Tier) finishFetch(f *fetch, c *Chunk, err error) {
	t.mu.Lock()
	if t.readEvent != nil {
		close(t.readEvent)
		t.readEvent = nil
	}
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

// runReaders begins fetches in their order, on one free lane after the other.
// Records that stand one behind the other are read with one call: chunks that
// went down together often come up together.
func (t *Tier) runReaders(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	var held *fetch
	for {
		f := held
		held = nil
		if f == nil {
			select {
			case <-ctx.Done():
				t.drain(ErrClosed)
				return
			case f = <-t.fetches:
			}
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
		var batch []*fetch
		batch, held = t.neighbours(f, uint32(len(l.buf)/PageBytes)/readSplit)
		under.Go(func() { t.serve(ctx, l, batch) })
	}
}

// readSplit keeps a call below the buffer's length, so that a load's chunks are
// read on several lanes.
const readSplit = 4

// neighbours takes from the queue what stands right behind a fetch, up to so many
// pages together, and returns the first that it took and that does not.
func (t *Tier) neighbours(f *fetch, pages uint32) (batch []*fetch, other *fetch) {
	batch = []*fetch{f}
	for used := f.place.pages; used < pages; {
		last := f.place
		select {
		case f = <-t.fetches:
		default:
			return batch, nil
		}
		used += f.place.pages
		if f.place.region != last.region || f.place.page != last.page+last.pages || used > pages {
			return batch, f
		}
		batch = append(batch, f)
	}
	return batch, nil
}

func (t *Tier) mayRead() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.usableLocked()
}

// serve reads a batch on a lane. What can't be read together is read one by one:
// it may be one record that is bad.
func (t *Tier) serve(ctx context.Context, l *lane, batch []*fetch) {
	if len(batch) > 1 {
		var done bool
		if l, done = t.readTogether(l, batch); done {
			batch = nil
		}
	}
	for i, f := range batch {
		if l == nil || i > 0 && !t.mayRead() {
			t.finishFetch(f, nil, ErrOutOfService)
			continue
		}
		l = t.readOne(ctx, l, f)
	}
	if l != nil {
		l.release()
	}
}

// readTogether reads records that stand one behind the other. The lane that it
// returns is nil when the call hangs.
func (t *Tier) readTogether(l *lane, batch []*fetch) (*lane, bool) {
	first, last := batch[0].place, batch[len(batch)-1].place
	bytes := l.buf[:int(last.page+last.pages-first.page)*PageBytes]
	file, at := t.file, t.offset(first)
	t.readBegins()
	err := l.run(t.opts.ReadDeadline, func() error { return readAll(file, bytes, at) })
	if err != nil {
		t.readEnds(0)
		t.failed("read", err)
		if kindOf(err) != KindTimeout {
			return l, false
		}
		for _, f := range batch {
			t.finishFetch(f, nil, err)
		}
		return nil, true
	}
	read := len(bytes)
	for _, f := range batch {
		record := bytes[:int(f.place.pages)*PageBytes]
		bytes = bytes[len(record):]
		h, to, err := f.begin(record)
		if err == nil {
			to.write(record[headerBytes:])
			err = to.check(&h)
		}
		t.answer(f, &h, err)
	}
	t.readEnds(read)
	return l, true
}

// readOne reads a record. The lane that it returns is nil when the call hangs.
func (t *Tier) readOne(ctx context.Context, l *lane, f *fetch) *lane {
	t.readBegins()
	h, l, err := t.readRecord(ctx, l, f)
	if err == nil {
		t.readEnds(int(f.place.pages) * PageBytes)
	} else {
		t.readEnds(0)
	}
	t.answer(f, h, err)
	return l
}

// answer ends a fetch that was read.
func (t *Tier) answer(f *fetch, h *recordHeader, err error) {
	if err == nil && !t.stillCounts(h) {
		t.finishFetch(f, nil, ErrGone)
		return
	}
	if err == nil {
		t.finishFetch(f, &h.Chunk, nil)
		return
	}
	if !errors.Is(err, ErrClosed) {
		t.failed("read", err)
		if kindOf(err) != KindTimeout {
			t.condemn(f)
		}
	}
	t.finishFetch(f, nil, err)
}

func (t *Tier) readBegins() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.speed.begin(t.opts.Now())
}

func (t *Tier) readEnds(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.speed.end(t.opts.Now(), bytes)
}

// readRecord reads a record piece by piece.
func (t *Tier) readRecord(ctx context.Context, l *lane, f *fetch) (*recordHeader, *lane, error) {
	file, at, left := t.file, t.offset(f.place), int(f.place.pages)*PageBytes
	var h recordHeader
	var to *scatter
	for left > 0 {
		if ctx.Err() != nil {
			return nil, l, ErrClosed
		}
		part, here := l.buf[:min(left, len(l.buf))], at
		err := l.run(t.opts.ReadDeadline, func() error { return readAll(file, part, here) })
		if kindOf(err) == KindTimeout {
			return nil, nil, err
		}
		payload := part
		if err == nil && to == nil {
			h, to, err = f.begin(part)
			payload = part[headerBytes:]
		}
		if err != nil {
			return nil, l, err
		}
		to.write(payload)
		at += int64(len(part))
		left -= len(part)
	}
	return &h, l, to.check(&h)
}

// begin looks whether a record is the one that is wanted.
func (f *fetch) begin(record []byte) (recordHeader, *scatter, error) {
	h, err := decodeRecord(record)
	if err != nil || h.Key != f.key || h.sequence != f.place.sequence || h.pages() != f.place.pages ||
		len(h.Checksums) != len(f.into) || int(h.ShardBytes) != len(f.into[0]) {
		return recordHeader{}, nil, ErrDamaged
	}
	return h, &scatter{shards: f.into, shardBytes: int(h.ShardBytes), sums: make([]uint32, len(f.into))}, nil
}

// check compares the sums of what was written with those of the chunk.
func (s *scatter) check(h *recordHeader) error {
	if !slices.Equal(s.sums, h.Checksums) {
		return ErrDamaged
	}
	return nil
}

// stillCounts tells whether a chunk that was read has not been removed meanwhile.
func (t *Tier) stillCounts(h *recordHeader) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.removed.counts(&h.Chunk, h.birth)
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
		t.stats.Removed++
		t.voidLocked(e.key)
	}
}
