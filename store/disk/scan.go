package disk

import (
	"cmp"
	"context"
	"crypto/rand"
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
	regions  int           // that the file has
	deadline time.Time

	mu     sync.Mutex // guards what follows
	next   int
	err    error
	logged time.Time
	lost   map[uint32]bool // regions that can't be read
	crowd  map[uint32]bool // regions for which the catalog has no room
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
	torn   bool // its bytes are not those of its checksums
}

// scan finds the chunks of the file, the newest regions first. It returns false
// when the disk failed: then nothing is known. The tier serves afterwards.
func (t *Tier) scan(ctx context.Context) bool {
	began := t.opts.Now()
	s := &scan{t: t, deadline: began.Add(t.opts.ScanDeadline), logged: began, lost: map[uint32]bool{}, crowd: map[uint32]bool{}}
	if err := s.findRegions(ctx); err != nil {
		return false
	}
	var walkers sync.WaitGroup
	for range t.opts.Readers {
		walkers.Go(func() { s.walkRegions(ctx) })
	}
	walkers.Wait()
	if s.err != nil || ctx.Err() != nil || s.mostLost() {
		return false
	}
	t.mu.Lock()
	// The policy learns of the regions in the order that they were written.
	for i := len(s.headers) - 1; i >= 0; i-- {
		id := s.headers[i].id
		switch {
		case i >= s.next: // not seen in time
			t.removed.voidRegion(id)
			t.log.idle = append(t.log.idle, id)
		case s.crowd[id]:
			t.log.idle = append(t.log.idle, id)
		case !s.lost[id]:
			t.log.open = id
			t.log.seal()
		}
	}
	t.stats.RecoveredChunks = uint64(t.catalog.live)
	t.phase = serving
	t.sweep = true // of what was removed meanwhile
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
	latest := uint64(0)
	for id := range uint32(len(t.log.regions)) {
		if err := s.over(ctx); err != nil {
			l.release()
			return err
		}
		at := t.offset(place{region: id})
		err := l.run(t.opts.ReadDeadline, func() error { return readAll(t.file, page, at) })
		if errors.Is(err, io.EOF) {
			break // the file ends here
		}
		if err != nil {
			t.failedOf("scan", err, kindOf(err) == KindTimeout) // others lose a region
			if kindOf(err) == KindTimeout {
				return err
			}
			s.lose(id)
			continue
		}
		h, err := decodeRegionHeader(page)
		if err != nil || h.identity != t.identity {
			idle = append(idle, id)
			continue
		}
		latest = max(latest, h.sequence)
		if t.isVoid(id) {
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
	s.regions = int(t.log.unused)
	t.log.idle = idle
	t.log.sequence = latest + leap()
	for _, r := range s.headers {
		t.log.regions[r.id].sequence = r.sequence
	}
	t.stats.ScanRegions, t.stats.ScannedRegions = uint64(len(s.headers)), 0
	t.stats.RecoveredChunks, t.stats.DroppedOnes = 0, 0
	return nil
}

// leap is how far the numbers of the regions' uses go on from the latest that was
// found. There may have been later ones, of which the headers can't be read or were
// lost with the power, and not their records: those must not be taken for records of
// a new use.
func leap() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return le.Uint64(b[:]) >> 24
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
			t.failedOf("scan", err, kindOf(err) == KindTimeout) // others lose a region
			if kindOf(err) == KindTimeout {
				s.fail(err)
				return // the lane is the call's
			}
			if s.lose(s.headers[i].id); s.mostLost() {
				s.fail(err)
			}
			continue
		}
		s.recover(&w, records)
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

// recover takes up what was found in a region: all of it, or, if the catalog has
// no room, none.
func (s *scan) recover(w *walk, records []recordFound) {
	t, id := s.t, w.region.id
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.ScannedRegions++
	r := &t.log.regions[id]
	r.pages = w.page
	if w.cut {
		t.removed.voidRegion(id)
	}
	for i := range records {
		r.birth = min(r.birth, uint32(records[i].header.birth))
	}
	for i := range records {
		if !t.recoverLocked(&records[i]) {
			t.dropRegionLocked(id)
			s.mu.Lock()
			s.crowd[id] = true
			s.mu.Unlock()
			return
		}
	}
}

func (s *scan) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

// lose leaves a region alone that can't be read.
func (s *scan) lose(id uint32) {
	s.mu.Lock()
	s.lost[id] = true
	s.mu.Unlock()
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.removed.voidRegion(id)
}

// mostLost tells whether it is the disk that fails, and not some of its regions.
func (s *scan) mostLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lost) >= failuresToOpen && len(s.lost) > s.regions/2
}

func (t *Tier) isVoid(id uint32) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, void := t.removed.void[id]
	return void
}

func (s *scan) report(done int) {
	if now := s.t.opts.Now(); now.Sub(s.logged) >= progressInterval {
		s.logged = now
		s.t.opts.Log.Info("the disk tier looks through its file", "regions_done", done, "regions", len(s.headers))
	}
}

// recoverLocked takes a record up that was found. Of two of a chunk the later one
// counts. False: the catalog is full.
func (t *Tier) recoverLocked(r *recordFound) bool {
	h := &r.header
	if h.birth > t.removed.count {
		// The file of removals is older than this record: a removal was not noted,
		// nobody knows of what. What was born before it does not count.
		t.removed.raise(h.birth)
		t.changedLocked(false)
	}
	if r.torn {
		t.voidLocked(keyOf(&h.Key)) // the next look would not read its bytes
		return true
	}
	if !t.removed.counts(&h.Chunk, h.birth) || t.expired(h.Expires) {
		t.stats.DroppedOnes++
		return true
	}
	key := keyOf(&h.Key)
	if id, known := t.catalog.find(key); known && !t.succeedsLocked(r, id, key) {
		return true
	}
	if t.catalog.full() {
		return false
	}
	if !t.enterLocked(h, r.place) {
		t.voidLocked(key) // too many namespaces or tags
	}
	return true
}

// succeedsLocked voids one of two records of a chunk, and tells whether it is the
// one in the catalog.
func (t *Tier) succeedsLocked(r *recordFound, id uint32, key [2]uint64) bool {
	e := &t.catalog.entries[id]
	birth, other := r.header.birth, uint64(e.birth)
	t.changedLocked(false)
	if birth == other { // they can't be told apart later
		t.removeLocked(id)
		t.voidLocked(key)
		return false
	}
	t.removed.supersede(chunkMark(key), max(birth, other))
	return birth > other
}

// walk goes along the records of a region.
type walk struct {
	t      *Tier
	l      *lane
	region regionFound
	// verify reads and sums the bytes too: a write may have been cut short.
	verify bool
	page   uint32      // of the next record; at the end how many are used
	cut    bool        // there may be more
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
		if w.cut = errors.Is(err, errOver); w.cut {
			break
		}
		if err != nil {
			return nil, err
		}
		h, written := w.record(b)
		if !written {
			break
		}
		r := recordFound{header: h, place: place{region: w.region.id, page: w.page, pages: h.pages(), sequence: h.sequence}}
		if w.verify {
			whole, err := w.whole(&r)
			if w.cut = errors.Is(err, errOver); w.cut {
				break
			}
			if err != nil {
				return nil, err
			}
			if r.torn = !whole; r.torn {
				w.t.mu.Lock()
				w.t.stats.DroppedOnes++
				w.t.mu.Unlock()
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
		if errors.Is(err, io.EOF) && w.to > page+1 {
			w.last, w.verify = smallRecord+1, false // the file has been cut: page by page up to its end
			w.from, w.to = 0, 0
			return w.at(page)
		}
		if errors.Is(err, io.EOF) {
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
