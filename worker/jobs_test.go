package worker_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// stored returns the test's usual prefix "p" in blocks 1 to n.
func stored(t *testing.T, e *engine, n int) []uint32 {
	t.Helper()
	blocks := ids(1, n)
	job := e.storeJob("p", blocks)
	r := e.do(job)
	want(t, r, job.Job, connector.StatusOK, "")
	if r.Chunks != n || r.Asked != n || r.AskMicros+r.MoveMicros > r.Micros || r.Bytes != int64(n*blockBytes) || r.Kind != connector.TypeStore {
		t.Fatalf("%+v", r)
	}
	return blocks
}

func hashAt(prefix string, i int) (h kv.Hash) {
	copy(h[:], hashes(prefix, i+1)[32*i:])
	return h
}

func TestWhatIsLoadedIsWhatWasStored(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	if !e.ready {
		t.Error("the store is not ready")
	}
	from := stored(t, e, 10)
	to := []uint32{40, 33, 20, 63, 50, 51, 12, 13, 49, 30}
	before := bytes.Clone(e.kv)
	job := e.loadJob("p", to)
	res := e.do(job)
	want(t, res, job.Job, connector.StatusOK, "")
	if res.Chunks != 10 || res.Asked != 10 || res.AskMicros+res.MoveMicros > res.Micros || res.Bytes != 10*blockBytes || res.Kind != connector.TypeLoad {
		t.Errorf("%+v", res)
	}
	for i := range to {
		if !bytes.Equal(e.block(to[i]), e.block(from[i])) {
			t.Errorf("block %d differs from block %d", to[i], from[i])
		}
	}
	after := bytes.Clone(e.kv)
	copy(e.kv, before)
	for id := range uint32(numBlocks) {
		old := e.block(id)
		copy(e.kv, after)
		if !slices.Contains(to, id) && !bytes.Equal(old, e.block(id)) {
			t.Errorf("block %d, which is not the load's, changed", id)
		}
		copy(e.kv, before)
	}
	if leases := r.store.Leases(); len(leases) != 1 || leases[0] != (store.Lease{Engine: "lookup-engine", Request: "l-p"}) {
		t.Errorf("leases %v", leases)
	}
	r.settled()
}

func TestSecondStoreFindsTheFirst(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	blocks := stored(t, e, 10)
	again := e.storeJob("p", blocks) // the same request: nothing is asked
	res := e.do(again)
	want(t, res, again.Job, connector.StatusOK, "")
	if res.Asked != 0 {
		t.Errorf("%d chunks asked for, want none", res.Asked)
	}
	if n := len(r.store.Puts()); n != 10 {
		t.Errorf("%d puts asked for, want 10", n)
	}
	other := e.storeJob("p", blocks)
	other.Parts[0].Request = "other"
	if res = e.do(other); res.Status != connector.StatusOK || res.Existing != 10 || res.Asked != 10 || res.Chunks != 0 {
		t.Errorf("%+v", res)
	}
	r.settled()
}

func TestStoreGrowsWithTheRequest(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	job := e.storeJob("p", ids(1, 7))
	if res := e.do(job); res.Chunks != 3 || res.Status != connector.StatusOK {
		t.Errorf("%+v", res)
	}
	puts := r.store.Puts()
	for i, p := range puts {
		wantParent := kv.Hash{}
		if i > 0 {
			wantParent = hashAt("p", i-1)
		}
		if p.Depth != uint32(i) || p.Hash != hashAt("p", i) || p.Parent != wantParent {
			t.Errorf("put %d: %+v", i, p)
		}
	}
	if len(puts) != 7 {
		t.Errorf("%d puts", len(puts))
	}
}

func TestFinishedRequestIsForgotten(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	blocks := stored(t, e, 4)
	e.send(&connector.Finished{Type: connector.TypeFinished, Requests: []string{"r-p"}})
	if res := e.do(e.storeJob("p", blocks)); res.Existing != 4 {
		t.Errorf("%+v", res)
	}
}

func TestNullBlocksAreLeftAlone(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	null := e.block(0)
	job := e.loadJob("p", []uint32{0, 20, 0, 21})
	res := e.do(job)
	want(t, res, job.Job, connector.StatusOK, "")
	if res.Chunks != 2 || !bytes.Equal(e.block(0), null) || !bytes.Equal(e.block(21), e.block(4)) {
		t.Errorf("%+v", res)
	}
	sj := e.storeJob("q", []uint32{0, 20})
	if res := e.do(sj); res.Chunks != 1 {
		t.Errorf("%+v", res)
	}
}

func TestLoadBeginsAtTheLocalHit(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 6)
	local := e.block(22)
	job := e.loadJob("p", ids(20, 6))
	job.LocalTokens = 3*tokens + 5 // inside a block: that block is loaded
	res := e.do(job)
	want(t, res, job.Job, connector.StatusOK, "")
	if res.Chunks != 3 || !bytes.Equal(e.block(22), local) || !bytes.Equal(e.block(23), e.block(4)) {
		t.Errorf("%+v", res)
	}
	job = e.loadJob("p", ids(20, 6))
	job.LocalTokens = 6 * tokens
	if res := e.do(job); res.Status != connector.StatusOK || res.Chunks != 0 {
		t.Errorf("nothing to load: %+v", res)
	}
}

func TestAbsentChunkEndsTheLoad(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 10)
	if !r.store.Remove(0, hashAt("p", 4)) {
		t.Fatal("nothing was removed")
	}
	untouched := e.block(36)
	job := e.loadJob("p", ids(30, 10))
	res := e.do(job)
	want(t, res, job.Job, connector.StatusFailed, "absent", ids(34, 6)...)
	for i := range uint32(4) {
		if !bytes.Equal(e.block(30+i), e.block(1+i)) {
			t.Errorf("block %d is said to be loaded and is not", 30+i)
		}
	}
	if !bytes.Equal(e.block(36), untouched) {
		t.Error("a block behind the gap was written")
	}
	if got := r.store.Reported(); len(got) != 1 || got[0] != (store.FailedChunk{Hash: hashAt("p", 4)}) {
		t.Errorf("reported %v", got)
	}
	r.settled()
}

func TestCorruptChunkIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		verify bool
		faults worker.Faults
		caught bool
	}{
		"verified":             {true, worker.Faults{}, true},
		"the engine says no":   {false, worker.Faults{}, false},
		"a server that is not": {true, worker.Faults{NoVerify: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *worker.Config) { cfg.Faults = c.faults })
			e := r.engineWith(func(reg *connector.Register) { reg.Verify = c.verify })
			stored(t, e, 10)
			if !r.store.Flip(0, hashAt("p", 5), 0, 100) {
				t.Fatal("nothing was flipped")
			}
			job := e.loadJob("p", ids(30, 10))
			res := e.do(job)
			if !c.caught {
				want(t, res, job.Job, connector.StatusOK, "")
				if bytes.Equal(e.block(35), e.block(6)) {
					t.Error("the flipped byte did not arrive: the test can't fail")
				}
				return
			}
			want(t, res, job.Job, connector.StatusFailed, "corrupt", 35)
			if got := r.store.Reported(); len(got) != 1 || got[0] != (store.FailedChunk{Hash: hashAt("p", 5), Corrupt: true}) {
				t.Errorf("reported %v", got)
			}
			r.settled()
		})
	}
}

func TestStoreThatIsAway(t *testing.T) {
	r := newRig(t, nil)
	r.ready.Store(false)
	r.store.SetHook(func(call string) error { return fmt.Errorf("%s: %w", call, store.ErrUnavailable) })
	e := r.engine()
	if e.ready {
		t.Error("the store is said to be ready")
	}
	sj := e.storeJob("p", ids(1, 4))
	want(t, e.do(sj), sj.Job, connector.StatusDropped, "no_store")
	lj := e.loadJob("p", ids(20, 4))
	want(t, e.do(lj), lj.Job, connector.StatusFailed, "no_store", ids(20, 4)...)

	// It comes: the namespace is opened, and the dropped range stored, with the
	// request's next job.
	r.store.SetHook(nil)
	sj = e.storeJob("p", ids(1, 4))
	if res := e.do(sj); res.Chunks != 4 {
		t.Errorf("%+v", res)
	}
	// It starts anew under way.
	r.store.Forget()
	lj = e.loadJob("p", ids(20, 4))
	want(t, e.do(lj), lj.Job, connector.StatusOK, "")
	r.settled()
}

func TestStoreThatFailsMidway(t *testing.T) {
	for _, call := range []string{"PutStart", "PutEnd", "Get"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, nil)
			e := r.engine()
			stored(t, e, 2)
			r.store.SetHook(func(c string) error {
				if c == call {
					return fmt.Errorf("refused")
				}
				return nil
			})
			if call == "Get" {
				lj := e.loadJob("p", ids(20, 2))
				want(t, e.do(lj), lj.Job, connector.StatusFailed, "store_error", 20, 21)
			} else {
				sj := e.storeJob("q", ids(1, 4))
				want(t, e.do(sj), sj.Job, connector.StatusFailed, "store_error")
			}
			r.store.SetHook(nil)
			for r.store.OpenPuts() > 0 { // they are revoked behind the result
				runtime.Gosched()
			}
			sj := e.storeJob("q", ids(1, 4))
			res := e.do(sj)
			if res.Chunks+res.Existing != 4 {
				t.Errorf("the next job: %+v", res)
			}
		})
	}
}

func TestFullStoreLeavesNoHole(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	n := (1<<20)/blockBytes - 60*34
	for i := range 34 {
		filler := e.storeJob(fmt.Sprint("filler", i), ids(1, 60))
		want(t, e.do(filler), filler.Job, connector.StatusOK, "")
	}
	if n != 8 {
		t.Fatalf("room for %d chunks left, the test wants 8", n)
	}
	job := e.storeJob("p", ids(1, 10))
	res := e.do(job)
	want(t, res, job.Job, connector.StatusFailed, "no_space")
	if res.Chunks != 8 {
		t.Errorf("%+v", res)
	}
	for i := range 60 {
		r.store.Remove(0, hashAt("filler0", i))
	}
	before := len(r.store.Puts())
	job = e.storeJob("p", ids(1, 10))
	if res := e.do(job); res.Chunks != 2 || res.Status != connector.StatusOK {
		t.Errorf("%+v", res)
	}
	if got := r.store.Puts()[before:]; len(got) != 2 || got[0].Depth != 8 {
		t.Errorf("the retry asked for %+v", got)
	}
}

func TestPutsAreStriped(t *testing.T) {
	r := newRig(t, nil)
	for phase := range 3 {
		e := r.engineWith(func(reg *connector.Register) { reg.PutStride, reg.PutPhase = []int{3}, []int{phase} })
		before := len(r.store.Puts())
		e.do(e.storeJob("p", ids(1, 8)))
		for _, p := range r.store.Puts()[before:] {
			if int(p.Depth)%3 != phase {
				t.Errorf("phase %d put chunk %d", phase, p.Depth)
			}
		}
	}
	if n := len(r.store.Puts()); n != 8 {
		t.Errorf("%d puts, want 8", n)
	}
	e := r.engine()
	job := e.loadJob("p", ids(20, 8))
	want(t, e.do(job), job.Job, connector.StatusOK, "")
}

func TestBoundaryPuts(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	job := e.storeJob("p", ids(1, 4))
	job.Parts[0].TokenLen = 0
	job.Parts[0].BoundaryPuts = [][3]int{{0, 3, 48}, {0, 0, 16}}
	if res := e.do(job); res.Chunks != 1 || res.Status != connector.StatusOK {
		t.Errorf("%+v", res)
	}
	if got := r.store.Bytes(0, hashAt("p", 2), 0); !bytes.Equal(got, e.block(3)) {
		t.Error("the boundary put is not there")
	}
	if got := r.store.Puts(); len(got) != 1 || got[0].Depth != 2 || got[0].Parent != hashAt("p", 1) {
		t.Errorf("%+v", got)
	}
	// It has not moved the saved length.
	if res := e.do(e.storeJob("p", ids(1, 4))); res.Chunks != 3 || res.Existing != 1 {
		t.Errorf("%+v", res)
	}
}

// A reset between the start and the end of a put voids it.
func TestVoidPutIsNotSaved(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 1)
	r.gate.armed.Store(true)
	job := e.storeJob("q", ids(1, 2))
	e.send(job)
	<-r.gate.entered
	r.store.Reset(1)
	r.gate.armed.Store(false)
	r.gate.proceed <- struct{}{}
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusFailed, "put_void")
	if got := r.store.Bytes(0, hashAt("q", 0), 0); got != nil {
		t.Error("a put from before the reset is there")
	}
}

func TestStaleEpochIsDropped(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	job := e.storeJob("p", ids(1, 2))
	job.Epoch = 5
	want(t, e.do(job), job.Job, connector.StatusOK, "")
	job = e.storeJob("q", ids(1, 2))
	job.Epoch = 4
	want(t, e.do(job), job.Job, connector.StatusDropped, "stale_epoch")
}

func TestSeveralEnginesAtOnce(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.engine(), r.engine()
	stored(t, a, 5)
	job := b.loadJob("p", ids(20, 5))
	want(t, b.do(job), job.Job, connector.StatusOK, "")
	if !bytes.Equal(b.block(20), a.block(1)) {
		t.Error("bytes differ")
	}
	a.conn.Close()
	job = b.loadJob("p", ids(30, 5))
	want(t, b.do(job), job.Job, connector.StatusOK, "")
	r.settled()
}

// What was computed before a reset must not be stored after it, however late its
// job comes to its turn.
func TestQueuedStoreIsVoidAfterAReset(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 1)
	r.gate.armed.Store(true)
	running, queued := e.storeJob("q", ids(1, 2)), e.storeJob("r", ids(3, 2))
	e.send(running)
	<-r.gate.entered
	e.send(queued)
	e.ping() // it has arrived
	r.store.Reset(1)
	r.gate.armed.Store(false)
	r.gate.proceed <- struct{}{}
	want(t, expect[*connector.Result](e.peer), running.Job, connector.StatusFailed, "put_void")
	want(t, expect[*connector.Result](e.peer), queued.Job, connector.StatusFailed, "stale_epoch")
	for _, prefix := range []string{"q", "r"} {
		if r.store.Bytes(0, hashAt(prefix, 0), 0) != nil {
			t.Errorf("blocks of %q from before the reset are there", prefix)
		}
	}
	// What comes after it is stored.
	next := e.storeJob("r", ids(3, 2))
	next.Generation = 1
	if res := e.do(next); res.Status != connector.StatusOK || res.Chunks != 2 {
		t.Errorf("%+v", res)
	}
	r.settled()
}

// However many jobs of before a reset are on their way, and whoever has reset the
// namespace: none of them is stored after it, and what is of after it is stored at
// once.
func TestNoJobOfBeforeAResetIsStored(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 1)
	r.store.Reset(1)
	for i := range 3 {
		late := e.storeJob(fmt.Sprint("old", i), ids(1, 2))
		want(t, e.do(late), late.Job, connector.StatusFailed, "stale_epoch")
	}
	next := e.storeJob("new", ids(3, 2))
	next.Generation = 1
	if res := e.do(next); res.Status != connector.StatusOK || res.Chunks != 2 {
		t.Errorf("the first job after the reset: %+v", res)
	}
	last := e.storeJob("old", ids(1, 2))
	want(t, e.do(last), last.Job, connector.StatusFailed, "stale_epoch")
	for _, prefix := range []string{"old", "old0", "old1", "old2"} {
		if r.store.Bytes(0, hashAt(prefix, 0), 0) != nil {
			t.Errorf("a block of %q from before the reset is there", prefix)
		}
	}
	r.settled()
}

// An engine that has reset its namespace says so by a newer epoch: its first job
// is stored, and one that was sent before the reset is not.
func TestFirstStoreAfterAReset(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 1)
	r.store.Reset(1)
	late := e.storeJob("old", ids(1, 2))
	next := e.storeJob("new", ids(3, 2))
	next.Epoch, next.Generation = late.Epoch+1, 1
	if res := e.do(next); res.Status != connector.StatusOK || res.Chunks != 2 {
		t.Errorf("the first job after the reset: %+v", res)
	}
	want(t, e.do(late), late.Job, connector.StatusDropped, "stale_epoch")
	if r.store.Bytes(0, hashAt("old", 0), 0) != nil {
		t.Error("a block from before the reset is there")
	}
	r.settled()
}

// Another engine's put may yet come to nothing: the request's next job asks
// again.
func TestShardUnderwayIsNotSaved(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.engine(), r.engine()
	stored(t, a, 1)
	r.gate.armed.Store(true)
	first := a.storeJob("q", ids(1, 2))
	a.send(first)
	<-r.gate.entered // with its puts granted
	second := b.storeJob("q", ids(1, 2))
	if res := b.do(second); res.Status != connector.StatusFailed || res.Reason != "underway" || res.Existing != 0 {
		t.Errorf("the engine must not take it for saved: %+v", res)
	}
	a.giveUp(first.Job)
	r.gate.armed.Store(false)
	r.gate.proceed <- struct{}{}
	want(t, expect[*connector.Result](a.peer), first.Job, connector.StatusCancelled, "cancelled")
	for r.store.OpenPuts() > 0 { // they are revoked behind the result
		runtime.Gosched()
	}
	second = b.storeJob("q", ids(1, 2))
	if res := b.do(second); res.Status != connector.StatusOK || res.Chunks != 2 {
		t.Errorf("the next job: %+v", res)
	}
	r.settled()
}

// A block that a job saves twice, as a boundary put and as a chunk, leaves no
// hole.
func TestBoundaryPutOfAWholeChunk(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	job := e.storeJob("p", ids(1, 3))
	job.Parts[0].BoundaryPuts = [][3]int{{0, 3, 3 * tokens}}
	if res := e.do(job); res.Status != connector.StatusOK || res.Chunks != 3 {
		t.Errorf("%+v", res)
	}
	before := len(r.store.Puts())
	job = e.storeJob("p", ids(1, 4))
	if res := e.do(job); res.Status != connector.StatusOK || res.Chunks != 1 {
		t.Errorf("%+v", res)
	}
	if got := r.store.Puts()[before:]; len(got) != 1 || got[0].Depth != 3 {
		t.Errorf("the next job asked for %+v", got)
	}
}
