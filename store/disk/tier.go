package disk

import (
	"context"
	"errors"
	"sync"
	"time"
)

// phase is how far the tier has got.
type phase uint8

const (
	starting phase = iota
	scanning
	serving
	closed
)

// String returns the phase's name.
func (p phase) String() string {
	return [closed + 1]string{"starting", "scanning", "in service", "closed"}[min(p, closed)]
}

// Tier keeps chunks on a disk. Its methods are safe for concurrent use, do not
// block and do no I/O, apart from Run and Settle.
type Tier struct {
	dir  Dir
	opts Options

	// Control, write and read lanes. The file is written by the one write lane, so
	// that a write that hangs can't land on a later one; the control lane writes
	// only its own page and the file of removals.
	control, writer, readers lanes

	demotions chan *demotion
	fetches   chan *fetch
	wake      chan struct{} // holds a token when the control loop has something to do

	mu sync.RWMutex // guards all below; no call into another package is made under it

	phase       phase
	file        File // nil while starting
	identity    uint64
	regionBytes uint64
	catalog     catalog
	log         regionLog
	removed     removals
	spaces      names[[32]byte]
	tags        names[string]
	breaker     breaker
	speed       speed
	fullUntil   time.Time // the disk being full, nothing is written before
	regrowAt    time.Time // nor is it asked for more room before
	full        bool      // the disk had no room for some of the regions

	queued        map[[2]uint64]*demotion
	queuedBytes   uint64
	namelessBytes uint64 // see refuseNameLocked
	fetchingBytes uint64
	readEvent     chan struct{} // nil: nobody waits for it

	early    []mark // removals of before the file was opened
	earlyAll bool   // of everything
	dirty    bool   // the file of removals is to be written
	fewer    bool   // and has fewer of them than it had
	unsynced bool   // a region was begun anew since the data file was synced
	sweep    bool   // void entries are to be dropped
	swept    uint64 // no entry is void by a removal up to this number
	// floorSeen: a sweep was asked for of what the floor voids up to here.
	floorSeen uint64
	held      map[*hold]struct{}
	asked     uint64 // calls that removed something so far
	settled   uint64 // of those, how many a restart will not undo
	// noted is the count of the removals in their file, as far as is known;
	// noteFull, noteFails: the latest note did not get there, the disk being full, or
	// for another reason.
	noted               uint64
	noteFull, noteFails bool
	// pruneAt is how long the list of removals may become before it is looked
	// through for what voids nothing any more.
	pruneAt      int
	settledEvent chan struct{} // closed at each note, and when there will be none for a while

	feed  feed
	stats Stats
}

// New makes a tier over a directory. It keeps nothing before Run.
func New(dir Dir, opts Options) (*Tier, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	t := &Tier{
		dir: dir, opts: opts, regionBytes: opts.RegionBytes,
		control: newLanes(1, PageBytes, dir.Buffer, nil), writer: newLanes(1, opts.BufferBytes, dir.Buffer, opts.WriteTook),
		readers:   newLanes(opts.Readers, opts.BufferBytes, dir.Buffer, opts.ReadTook),
		demotions: make(chan *demotion, maxWaiting), fetches: make(chan *fetch, maxWaiting), wake: make(chan struct{}, 1),
		removed: newRemovals(0), queued: map[[2]uint64]*demotion{}, held: map[*hold]struct{}{}, settledEvent: make(chan struct{}),
		speed: newSpeed(),
	}
	t.emptyLocked(opts.RegionBytes)
	return t, nil
}

// emptyLocked forgets all chunks.
func (t *Tier) emptyLocked(regionBytes uint64) {
	if t.catalog.live > 0 {
		t.feed.lose()
	}
	regions := t.opts.regions(regionBytes)
	t.swept, t.pruneAt = 0, t.opts.leastPrune
	t.regionBytes = regionBytes
	t.catalog = newCatalog(int(min(max(t.opts.Bytes/bytesPerEntry, minEntries), maxEntries)))
	t.log = newRegionLog(uint32(regions), uint32(regionBytes/PageBytes), t.opts.NewPolicy(int(regions)))
	t.spaces, t.tags = newNames[[32]byte](), newNames[string]()
}

// closeDeadline bounds the wait for calls under way at the end.
const closeDeadline = 2 * time.Second

// Run opens the file, looks through it, and serves until ctx ends. Every demotion
// and fetch that was accepted has been answered when it returns. It returns an
// error when a call into the disk still hangs: its goroutine is left behind.
//
// REQUIRES: it is called once.
func (t *Tier) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { t.runWriter(ctx) })
	loops.Go(func() { t.runReaders(ctx) })
	loops.Go(func() { t.runControl(ctx) })
	loops.Wait()
	return t.close() //nolint:contextcheck // ctx is over by then
}

func (t *Tier) close() error {
	t.mu.Lock()
	t.phase = closed
	t.settledLocked()
	file := t.file
	t.mu.Unlock()
	t.drain(ErrClosed) // what slipped in
	// All lanes at home: nobody uses the file.
	ctx, cancel := context.WithTimeout(context.Background(), closeDeadline)
	defer cancel()
	for _, kind := range []struct {
		free lanes
		n    int
	}{{t.control, 1}, {t.writer, 1}, {t.readers, t.opts.Readers}} {
		for range kind.n {
			if kind.free.take(ctx, closeDeadline) == nil {
				return errors.New("the disk tier is left with a call that hangs")
			}
		}
	}
	if file == nil {
		return nil
	}
	return file.Close()
}

// drain answers everything that waits.
func (t *Tier) drain(err error) {
	for {
		select {
		case d := <-t.demotions:
			t.finish(d, err)
		case f := <-t.fetches:
			t.finishFetch(f, nil, err)
		default:
			return
		}
	}
}

// usableLocked tells whether the disk is asked at all.
func (t *Tier) usableLocked() bool { return t.phase == serving && t.breaker.state == inService }

// failed notes an error of a call, and holds it against the disk.
func (t *Tier) failed(call string, err error) {
	t.failedOf(call, err, kindOf(err) != KindFull && kindOf(err) != KindDamaged)
}

// failedOf notes an error of a call. against: the disk may go out of service by it.
func (t *Tier) failedOf(call string, err error, against bool) {
	kind := kindOf(err)
	now := t.opts.Now()
	t.mu.Lock()
	t.stats.Errors[kind]++
	opened := false
	if against {
		opened = t.breaker.failed(now, kind == KindTimeout)
	}
	cooldown := t.breaker.cooldown
	if opened {
		t.settledLocked() // those who wait for the disk wait in vain
	}
	t.mu.Unlock()
	if opened {
		t.opts.Log.Warn("the disk tier is out of service: the disk is slow or failing", "call", call, "error", err, "probe_in", cooldown)
		t.poke()
	} else {
		t.opts.Log.Debug("disk tier", "call", call, "error", err)
	}
}

// settledLocked wakes those who wait in Settle to look again.
func (t *Tier) settledLocked() {
	close(t.settledEvent)
	t.settledEvent = make(chan struct{})
}

// poke has the control loop look around.
func (t *Tier) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// offset returns where a place is in the file.
func (t *Tier) offset(p place) int64 {
	return regionsAt + int64(p.region)*int64(t.regionBytes) + int64(p.page)*PageBytes
}
