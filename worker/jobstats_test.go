package worker

import (
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// durations is an Observer that keeps what it is told.
type durations []float64

func (d *durations) Observe(seconds float64) { *d = append(*d, seconds) }

func TestJobCounters(t *testing.T) {
	if len(reasons)+1 != numReasons {
		t.Fatalf("%d reasons and another, room for %d", len(reasons), numReasons)
	}
	var took, ask, move durations
	c := jobCounters{times: JobTimes{Took: &took, Ask: &ask, Move: &move}}
	c.count(&connector.Result{Status: connector.StatusOK, Asked: 5, Existing: 2, Chunks: 3, Bytes: 300, Micros: 100, AskMicros: 10, MoveMicros: 50})
	c.count(&connector.Result{Status: connector.StatusFailed, Reason: reasonCorrupt, Failed: make([]byte, 8), Micros: 7})
	c.count(&connector.Result{Status: connector.StatusDropped, Reason: "of a later version", Chunks: -1, Bytes: -1})
	s := c.snapshot()
	if s.ByStatus[connector.StatusOK] != 1 || s.ByStatus[connector.StatusFailed] != 1 || s.ByStatus[connector.StatusDropped] != 1 || len(s.ByStatus) != len(statuses) {
		t.Errorf("by status %v", s.ByStatus)
	}
	if s.ByReason[reasonCorrupt] != 1 || s.ByReason[otherReason] != 1 || len(s.ByReason) != numReasons {
		t.Errorf("by reason %v", s.ByReason)
	}
	if s.Asked != 5 || s.Existing != 2 || s.Moved != 3 || s.FailedBlocks != 2 || s.Bytes != 300 {
		t.Errorf("counted %+v", s)
	}
	if !slices.Equal(took, durations{100e-6, 7e-6, 0}) || !slices.Equal(ask, durations{10e-6}) || !slices.Equal(move, durations{50e-6}) {
		t.Errorf("told of %v, %v, %v s", took, ask, move)
	}
	(&jobCounters{}).count(&connector.Result{Status: connector.StatusOK, Asked: 1}) // nobody wants to know
}

func TestQueueStats(t *testing.T) {
	q := newQueue(10, 1<<20)
	cancel := func() {}
	for id, j := range []*job{{load: &connector.LoadJob{}}, {load: &connector.LoadJob{}}, {store: &connector.StoreBatch{}}} {
		j.id, j.bytes, j.cancel = uint64(id+1), 100, cancel
		if err := q.add(j); err != nil {
			t.Fatal(err)
		}
	}
	running, _ := q.nextLoad(new(uint64))
	if got, want := q.stats(), (QueueStats{WaitingLoads: 1, WaitingStores: 1, Running: 1, Bytes: 300}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	q.finish(running)
	s := &Server{}
	s.mu.queues = map[*queue]struct{}{}
	s.watchQueue(q)
	if got, want := s.queueStats(), (QueueStats{WaitingLoads: 1, WaitingStores: 1, Bytes: 200}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	s.unwatchQueue(q)
	if got := s.queueStats(); got != (QueueStats{}) {
		t.Errorf("without queues %+v", got)
	}
}
