package worker_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// loadFenceHolds cancels a load that is held up in its batch number `batch`, and
// takes the load's blocks for something else as soon as the cancel is
// acknowledged. It reports whether the blocks stayed as they were then.
//
// The pong tells the two servers apart without a clock: the reader takes the
// cancel before the ping. A correct server can't have answered the cancel by
// then, because the copy is held up.
func loadFenceHolds(t *testing.T, batch int, faults worker.Faults) bool {
	r := newRig(t, func(cfg *worker.Config) { cfg.Faults = faults })
	e := r.engine()
	stored(t, e, 8)
	to := ids(30, 8)
	r.gate.armed.Store(true)
	job := e.loadJob("p", to)
	e.send(job)
	for range batch {
		<-r.gate.entered
		r.gate.proceed <- struct{}{}
	}
	<-r.gate.entered
	e.giveUp(job.Job)
	e.send(&connector.Ping{Type: connector.TypePing, Seq: 1})
	var result *connector.Result
	switch first := e.recv().(type) {
	case *connector.Result: // acknowledged with a copy under way
		result = first
	case *connector.Pong:
		r.gate.unblock()
		result = expect[*connector.Result](e.peer)
	}
	// A cancel that comes with the last batch under way may find the job done.
	if done := batch == 3 && result.Status == connector.StatusOK; result.Job != job.Job || !done && result.Status != connector.StatusCancelled {
		t.Fatalf("%+v", result)
	}
	for _, id := range to {
		e.fill(id, 0xee)
	}
	began := r.gate.copies.Load()
	r.gate.unblock()
	r.settled() // every goroutine that could write has ended
	holds := began == r.gate.copies.Load()
	for _, id := range to {
		if !bytes.Equal(e.block(id), bytes.Repeat([]byte{0xee}, blockBytes)) {
			holds = false
		}
	}
	return holds
}

func TestAfterTheResultOfALoadNoByteIsWritten(t *testing.T) {
	for batch := range 4 {
		if !loadFenceHolds(t, batch, worker.Faults{}) {
			t.Errorf("cancelled in batch %d: the blocks were written after the result", batch)
		}
	}
}

// The test above can fail: a server that acknowledges a cancel without waiting
// writes into blocks that are another's.
func TestFenceTestSeesABrokenServer(t *testing.T) {
	for batch := range 4 {
		if loadFenceHolds(t, batch, worker.Faults{IgnoreCancel: true}) {
			t.Errorf("cancelled in batch %d: the broken server was not caught", batch)
		}
	}
}

// storeFenceHolds cancels a store that is held up in its last batch, and takes
// its blocks. It reports whether nothing of that batch was published, and of the
// one before it what the blocks held.
func storeFenceHolds(t *testing.T, faults worker.Faults) bool {
	r := newRig(t, func(cfg *worker.Config) { cfg.Faults = faults })
	e := r.engine()
	r.gate.armed.Store(true)
	job := e.storeJob("p", ids(1, 4))
	first := [][]byte{bytes.Clone(e.block(1)), bytes.Clone(e.block(2))}
	e.send(job)
	<-r.gate.entered
	r.gate.proceed <- struct{}{}
	<-r.gate.entered
	e.giveUp(job.Job)
	e.send(&connector.Ping{Type: connector.TypePing, Seq: 1})
	if _, acknowledged := e.recv().(*connector.Result); acknowledged {
		for id := range uint32(4) {
			e.fill(1+id, 0xee)
		}
		r.gate.unblock()
	} else {
		r.gate.unblock()
		want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusCancelled, "cancelled")
	}
	// A store behind it in the queue: when it is answered, so is the other.
	next := e.storeJob("q", ids(10, 1))
	e.send(next)
	for {
		if res, ok := e.recv().(*connector.Result); ok && res.Job == next.Job {
			break
		}
	}
	holds := r.store.Published() == len(first)+1
	for i, block := range first {
		holds = holds && bytes.Equal(r.store.Bytes(0, hashAt("p", i), 0), block)
	}
	r.settled()
	return holds
}

func TestCancelledStorePublishesNoMore(t *testing.T) {
	if !storeFenceHolds(t, worker.Faults{}) {
		t.Error("a cancelled store was published")
	}
	if storeFenceHolds(t, worker.Faults{IgnoreCancel: true}) {
		t.Error("the broken server was not caught")
	}
}

// The board alone cancels: the frame may be late, or the engine stopped after it
// wrote the word.
func TestTheWordAloneCancels(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	copies := r.gate.copies.Load()
	for _, msg := range []func() any{
		func() any { return e.loadJob("p", ids(20, 4)) },
		func() any { return e.storeJob("q", ids(1, 4)) },
	} {
		msg := msg()
		e.board.SetWord(int(e.job%jobSlots), e.job|connector.CancelBit)
		if res := e.do(msg); res.Status != connector.StatusCancelled {
			t.Errorf("%+v", res)
		}
		e.board.SetWord(int(e.job%jobSlots), 0)
	}
	// A word that another job took over counts as well.
	late := e.loadJob("p", ids(20, 4))
	e.board.SetWord(int(late.Job%jobSlots), late.Job+jobSlots)
	want(t, e.do(late), late.Job, connector.StatusCancelled, "cancelled", ids(20, 4)...)
	if n := r.gate.copies.Load(); n != copies {
		t.Errorf("%d batches were begun", n-copies)
	}
	r.settled()
}

func TestWordSeenBetweenBatches(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 8)
	r.gate.armed.Store(true)
	job := e.loadJob("p", ids(30, 8))
	e.send(job)
	<-r.gate.entered
	e.board.SetWord(int(job.Job%jobSlots), job.Job|connector.CancelBit)
	r.gate.proceed <- struct{}{}
	// The first batch of two is through; what it loaded is good.
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusCancelled, "cancelled", ids(32, 6)...)
	r.settled()
}

func TestCancelOfAQueuedJobIsAnsweredAtOnce(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) { cfg.LoadPipelines = 1 })
	e := r.engine()
	stored(t, e, 2)
	r.gate.armed.Store(true)
	running, queued := e.loadJob("p", ids(20, 2)), e.loadJob("p", ids(30, 2))
	store := e.storeJob("q", ids(1, 2))
	e.send(running)
	<-r.gate.entered
	e.send(queued)
	e.send(store) // behind the loads
	e.giveUp(queued.Job)
	want(t, expect[*connector.Result](e.peer), queued.Job, connector.StatusCancelled, "cancelled", 30, 31)
	e.giveUp(queued.Job) // again: it is not known any more
	e.ping()
	r.gate.armed.Store(false)
	r.gate.unblock()
	seen := map[uint64]string{}
	for range 2 {
		res := expect[*connector.Result](e.peer)
		seen[res.Job] = res.Status
	}
	if seen[running.Job] != connector.StatusOK || seen[store.Job] != connector.StatusOK {
		t.Errorf("%v", seen)
	}
	e.giveUp(running.Job) // done: ignored
	e.ping()
	r.settled()
}

// A store that waits behind a load is answered at once too.
func TestCancelOfAQueuedStore(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	r.gate.armed.Store(true)
	first, second := e.storeJob("p", ids(1, 2)), e.storeJob("q", ids(3, 2))
	e.send(first)
	<-r.gate.entered
	e.send(second)
	e.giveUp(second.Job)
	want(t, expect[*connector.Result](e.peer), second.Job, connector.StatusCancelled, "cancelled")
	r.gate.unblock()
	want(t, expect[*connector.Result](e.peer), first.Job, connector.StatusOK, "")
	if n := r.store.Published(); n != 2 {
		t.Errorf("%d puts published", n)
	}
	r.settled()
}

// A cancelled job is over for the ledger too, or its request is never forgotten.
func TestCancelledStoreEndsInTheLedger(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	r.gate.armed.Store(true)
	running, queued := e.storeJob("q", ids(1, 2)), e.storeJob("p", ids(1, 6))
	e.send(running)
	<-r.gate.entered
	e.send(queued)
	e.giveUp(queued.Job)
	want(t, expect[*connector.Result](e.peer), queued.Job, connector.StatusCancelled, "cancelled")
	r.gate.unblock()
	want(t, expect[*connector.Result](e.peer), running.Job, connector.StatusOK, "")
	e.send(&connector.Finished{Type: connector.TypeFinished, Requests: []string{"r-p"}})
	if res := e.do(e.storeJob("p", ids(1, 4))); res.Existing != 4 {
		t.Errorf("%+v", res)
	}
}

func TestPreemptionVoidsQueuedStores(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	r.gate.armed.Store(true)
	first, second := e.storeJob("p", ids(1, 2)), e.storeJob("p", ids(1, 4))
	e.send(first)
	<-r.gate.entered
	e.send(second)
	e.send(&connector.Finished{Type: connector.TypeFinished, Preempted: []string{"r-p"}})
	e.ping()
	r.gate.armed.Store(false)
	r.gate.unblock()
	want(t, expect[*connector.Result](e.peer), first.Job, connector.StatusOK, "")
	want(t, expect[*connector.Result](e.peer), second.Job, connector.StatusDropped, "retired")
	// The request comes back: nothing of the old offset is left.
	if res := e.do(e.storeJob("p", ids(5, 3))); res.Existing != 2 || res.Chunks != 1 {
		t.Errorf("%+v", res)
	}
}

func TestFullQueueDropsTheNewest(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) { cfg.QueueJobs, cfg.LoadPipelines = 1, 1 })
	e := r.engine()
	stored(t, e, 2)
	r.gate.armed.Store(true)
	running, waiting, over := e.loadJob("p", ids(20, 2)), e.loadJob("p", ids(22, 2)), e.loadJob("p", ids(24, 2))
	e.send(running)
	<-r.gate.entered
	e.send(waiting)
	want(t, e.do(over), over.Job, connector.StatusDropped, "queue_full", 24, 25)
	// The first is begun, and waits for the load to have copied; the second waits to begin.
	begun, store, storeOver := e.storeJob("q", ids(1, 2)), e.storeJob("s", ids(1, 2)), e.storeJob("r", ids(1, 2))
	e.send(begun)
	for r.server.Stats().Queues.Running < 2 {
		runtime.Gosched()
	}
	e.send(store)
	want(t, e.do(storeOver), storeOver.Job, connector.StatusDropped, "queue_full")
	r.gate.armed.Store(false)
	r.gate.unblock()
	for range 4 {
		if res := expect[*connector.Result](e.peer); res.Status != connector.StatusOK {
			t.Errorf("%+v", res)
		}
	}
	r.settled()
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) { cfg.QueueBytes, cfg.LoadPipelines = 1, 1 })
	e := r.engine()
	stored(t, e, 2)
	r.gate.armed.Store(true)
	running, over := e.loadJob("p", ids(20, 2)), e.loadJob("p", ids(22, 2))
	e.send(running) // one is always taken
	<-r.gate.entered
	want(t, e.do(over), over.Job, connector.StatusDropped, "queue_full", 22, 23)
	r.gate.unblock()
	want(t, expect[*connector.Result](e.peer), running.Job, connector.StatusOK, "")
}

// The engine dies in the middle of a copy: the copy ends, then the mapping goes,
// and the store gets everything back.
func TestEndOfTheEngineInMidCopy(t *testing.T) {
	for _, kind := range []string{connector.TypeLoad, connector.TypeStore} {
		t.Run(kind, func(t *testing.T) {
			ended := make(chan struct{}, 1)
			r := newRig(t, func(cfg *worker.Config) {
				cfg.OnSessions = func(active int) {
					if active == 0 {
						ended <- struct{}{}
					}
				}
			})
			e := r.engine()
			stored(t, e, 6)
			r.gate.armed.Store(true)
			if kind == connector.TypeLoad {
				e.send(e.loadJob("p", ids(20, 6)))
			} else {
				e.send(e.storeJob("q", ids(20, 6)))
			}
			held := <-r.gate.entered
			began, published := r.gate.copies.Load(), r.store.Published()
			e.conn.Close()
			// The word on the board is good and no frame came: the end of the
			// connection alone stops the job.
			<-held.Done()
			r.gate.armed.Store(false)
			r.gate.unblock()
			<-ended
			if n := r.gate.copies.Load(); n != began {
				t.Errorf("%d batches after the end", n-began)
			}
			if n := r.store.Published(); n != published {
				t.Errorf("%d puts were published after the end", n-published)
			}
			r.settled()
		})
	}
}
