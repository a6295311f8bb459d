package disk

import (
	"context"
	"hash/crc32"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// demotion is a chunk that waits to be written.
type demotion struct {
	chunk  Chunk
	key    [2]uint64
	source [][]byte
	done   func(error)
	birth  uint64 // see removals
}

// Demote hands over a chunk to be written, source being its shards. False: it is
// not taken. done is called once, from another goroutine and under no lock of the
// tier's, when source is not looked at any more; its error is nil when the chunk
// can be fetched.
func (t *Tier) Demote(chunk Chunk, source [][]byte, done func(error)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &demotion{chunk: chunk, key: keyOf(&chunk.Key), source: source, done: done}
	bytes := uint64(chunk.payloadBytes())
	switch {
	case !t.usableLocked() || t.opts.Now().Before(t.fullUntil) || t.heldLocked(&chunk):
		t.stats.Refused[RefusedState]++
		return false
	case !t.fitsLocked(&chunk, source):
		t.stats.Refused[RefusedSize]++
		return false
	case !t.spaces.has(chunk.Namespace) || !t.tags.has(chunk.Tag):
		t.refuseNameLocked(&chunk)
		return false
	case t.staysLocked(d.key):
		return false
	// One chunk is always taken, however long.
	case t.queuedBytes > 0 && t.queuedBytes+bytes > t.opts.QueueBytes || t.queued[d.key] != nil:
		t.stats.Refused[RefusedQueue]++
		return false
	}
	t.replaceLocked(d.key)
	d.birth = t.removed.count
	select {
	case t.demotions <- d:
	default:
		t.stats.Refused[RefusedQueue]++
		return false
	}
	t.queuedBytes += bytes
	t.queued[d.key] = d
	return true
}

// staysLocked tells whether a chunk is there, and not about to be written over.
func (t *Tier) staysLocked(key [2]uint64) bool {
	id, known := t.catalog.find(key)
	return known && t.catalog.entries[id].region != t.log.closing && t.countsLocked(&t.catalog.entries[id])
}

// replaceLocked voids the record of a chunk that will have a new one: of two one
// would be in no catalog.
func (t *Tier) replaceLocked(key [2]uint64) {
	if id, known := t.catalog.find(key); known {
		t.removeLocked(id)
		t.voidLocked(key)
	}
}

// CanDemote tells whether a chunk of so many bytes would be taken now.
func (t *Tier) CanDemote(bytes uint64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.usableLocked() && !t.opts.Now().Before(t.fullUntil) && len(t.demotions) < maxWaiting &&
		(t.queuedBytes == 0 || t.queuedBytes+bytes <= t.opts.QueueBytes)
}

func (t *Tier) fitsLocked(c *Chunk, source [][]byte) bool {
	if len(c.Tag) > MaxTagBytes || len(source) != len(c.Checksums) || len(source) == 0 || len(source) > kv.MaxShards || c.ShardBytes == 0 {
		return false
	}
	for _, shard := range source {
		if len(shard) != int(c.ShardBytes) {
			return false
		}
	}
	return c.pages() < t.log.regionPages
}

// finish answers a demotion.
func (t *Tier) finish(d *demotion, err error) {
	t.mu.Lock()
	t.dequeueLocked(d)
	t.mu.Unlock()
	d.done(err)
}

func (t *Tier) dequeueLocked(d *demotion) {
	t.queuedBytes -= uint64(d.chunk.payloadBytes())
	delete(t.queued, d.key)
}

// wanted tells whether a demotion is to be written: not if it was removed while it
// waited.
func (t *Tier) wanted(d *demotion) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.removed.counts(&d.chunk, d.birth)
}

// runWriter writes what is handed over, one batch at a time.
func (t *Tier) runWriter(ctx context.Context) {
	w := &writer{t: t, budget: newBudget(t.opts.WriteBytesPerSecond, t.opts.Now())}
	for {
		d := w.held
		w.held = nil
		if d == nil {
			select {
			case <-ctx.Done():
				t.drain(ErrClosed)
				return
			case d = <-t.demotions:
			}
		}
		w.write(ctx, d)
	}
}

// writer is the one goroutine that fills regions.
type writer struct {
	t      *Tier
	budget budget
	batch  []written
	held   *demotion // did not fit the batch before
}

// written is a demotion with its place.
type written struct {
	d     *demotion
	place place
	err   error // what became of it
}

// write writes a demotion, and what else waits and fits beside it.
func (w *writer) write(ctx context.Context, d *demotion) {
	err := w.ready(ctx)
	if err == nil {
		err = w.t.awaitNote(ctx, d.birth)
	}
	if err != nil {
		w.t.finish(d, err)
		return
	}
	l := w.t.writer.take(ctx, w.t.opts.WriteDeadline)
	if l == nil {
		w.t.failed("write", errLate) // the one before hangs
		w.t.finish(d, ErrOutOfService)
		return
	}
	l, err = w.makeRoom(ctx, l, d.chunk.pages())
	switch {
	case err != nil:
		w.t.finish(d, err)
	case int(d.chunk.pages())*PageBytes > len(l.buf):
		l = w.writeLong(ctx, l, d)
	default:
		l = w.writeBatch(l, d)
	}
	if l != nil {
		l.release()
	}
}

// ready waits until the rate lets something be written.
func (w *writer) ready(ctx context.Context) error {
	for {
		if err := w.t.mayWrite(); err != nil {
			return err
		}
		wait := w.budget.wait(w.t.opts.Now())
		if wait == 0 {
			return nil
		}
		timer := time.NewTimer(min(wait, time.Second))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ErrClosed
		}
	}
}

func (t *Tier) mayWrite() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case !t.usableLocked():
		return ErrOutOfService
	case t.opts.Now().Before(t.fullUntil):
		return ErrFull
	}
	return nil
}

// writeBatch writes short records with one call.
func (w *writer) writeBatch(l *lane, d *demotion) *lane {
	t := w.t
	w.batch = w.batch[:0]
	used := 0
	for d != nil {
		pages := d.chunk.pages()
		if used+int(pages)*PageBytes > len(l.buf) || !t.maySubmit(d) {
			w.held = d
			break
		}
		if !t.wanted(d) {
			t.finish(d, ErrGone)
		} else if record := l.buf[used : used+int(pages)*PageBytes]; w.fill(record, d) {
			t.mu.Lock()
			p := t.log.reserve(pages, d.birth)
			t.mu.Unlock()
			(&recordHeader{Chunk: d.chunk, sequence: p.sequence, birth: d.birth}).encode(record)
			w.batch = append(w.batch, written{d: d, place: p})
			used += len(record)
		} else {
			t.finish(d, ErrSource)
		}
		select {
		case d = <-t.demotions:
		default:
			d = nil
		}
	}
	if used == 0 {
		return l
	}
	w.budget.spend(t.opts.Now(), used)
	file, at, bytes := t.file, t.offset(w.batch[0].place), l.buf[:used]
	err := l.run(t.opts.WriteDeadline, func() error { return writeAll(file, bytes, at) })
	return w.written(l, err)
}

// maySubmit tells whether a demotion may be written with others: there is room for
// it, and it need not wait (see awaitNote).
func (t *Tier) maySubmit(d *demotion) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.log.room() >= d.chunk.pages() && t.submittableLocked(d.birth)
}

// fill copies a chunk's shards to behind the header's place. False: they are not
// what their checksums say.
func (w *writer) fill(record []byte, d *demotion) bool {
	at := headerBytes
	for i, shard := range d.source {
		if copySum(record[at:], shard, 0) != d.chunk.Checksums[i] {
			return false
		}
		at += len(shard)
	}
	clear(record[at:])
	return true
}

// copyStride keeps what was copied in the nearest cache until it is summed.
const copyStride = 32 << 10

// copySum copies src to dst and adds it to the sum.
func copySum(dst, src []byte, sum uint32) uint32 {
	for len(src) > 0 {
		n := copy(dst, src[:min(copyStride, len(src))])
		sum = crc32.Update(sum, castagnoli, dst[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}

// written ends a batch.
func (w *writer) written(l *lane, err error) *lane {
	t := w.t
	if err != nil {
		l, _ = w.failed(l, "write", err)
	}
	t.mu.Lock()
	if err == nil {
		t.breaker.succeeded()
	} else {
		t.log.seal() // what follows a hole would not be found at the next start
	}
	for i := range w.batch {
		item := &w.batch[i]
		t.dequeueLocked(item.d)
		if item.err = err; err == nil {
			item.err = t.keepLocked(item)
		} else {
			t.voidLocked(item.d.key) // some of it may have been written, or will be
		}
	}
	t.mu.Unlock()
	for _, item := range w.batch {
		item.d.done(item.err)
	}
	clear(w.batch)
	return l
}

// keepLocked enters a written chunk in the catalog, or says why it is not there.
func (t *Tier) keepLocked(item *written) error {
	d := item.d
	t.stats.WrittenChunks++
	t.stats.WrittenBytes += uint64(item.place.pages) * PageBytes
	if !t.removed.counts(&d.chunk, d.birth) {
		return ErrGone
	}
	if !t.enterLocked(&recordHeader{Chunk: d.chunk, birth: d.birth}, item.place) {
		t.voidLocked(d.key)
		return ErrNoEntry
	}
	return nil
}

// writeLong writes a record that is longer than the buffer. Its first page, with
// the header, comes last: a record that is found is whole.
func (w *writer) writeLong(ctx context.Context, l *lane, d *demotion) *lane {
	t := w.t
	if !t.wanted(d) {
		t.finish(d, ErrGone)
		return l
	}
	t.mu.Lock()
	p := t.log.reserve(d.chunk.pages(), d.birth)
	t.mu.Unlock()
	w.batch = append(w.batch[:0], written{d: d, place: p})
	from := reader{shards: d.source, sums: make([]uint32, len(d.source))}
	first := make([]byte, PageBytes)
	from.read(first[headerBytes:])
	file := t.file
	for at := t.offset(p) + PageBytes; from.left(); {
		n := from.read(l.buf)
		end := (n + PageBytes - 1) / PageBytes * PageBytes
		clear(l.buf[n:end])
		bytes, here := l.buf[:end], at
		w.budget.spend(t.opts.Now(), end)
		if ctx.Err() != nil {
			return w.written(l, ErrClosed)
		}
		if err := l.run(t.opts.WriteDeadline, func() error { return writeAll(file, bytes, here) }); err != nil {
			return w.written(l, err)
		}
		at += int64(end)
	}
	for i, sum := range from.sums {
		if sum != d.chunk.Checksums[i] {
			// Its place stays unused; the region ends here for a later start.
			t.mu.Lock()
			t.log.seal()
			t.mu.Unlock()
			t.finish(d, ErrSource)
			return l
		}
	}
	(&recordHeader{Chunk: d.chunk, sequence: p.sequence, birth: d.birth}).encode(first)
	copy(l.buf, first)
	bytes, at := l.buf[:PageBytes], t.offset(p)
	return w.written(l, l.run(t.opts.WriteDeadline, func() error { return writeAll(file, bytes, at) }))
}
