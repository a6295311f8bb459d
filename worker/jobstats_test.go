package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// durations is an Observer that keeps what it is told.
type durations []float64

func (d *durations) Observe(seconds float64) { *d = append(*d, seconds) }

func TestJobCounters(t *testing.T) {
	if len(reasons)+1 != numReasons {
		t.Fatalf("%d reasons and another, room for %d", len(reasons), numReasons)
	}
	var took, ask, move, wait durations
	c := jobCounters{times: JobTimes{Took: &took, Ask: &ask, Move: &move, Wait: &wait}}
	c.count(&connector.Result{Status: connector.StatusOK, Asked: 5, Existing: 2, Chunks: 3, Bytes: 300, Micros: 100, AskMicros: 10, MoveMicros: 50}, 9*time.Microsecond)
	c.count(&connector.Result{Status: connector.StatusFailed, Reason: reasonCorrupt, Failed: make([]byte, 8), Micros: 7}, 0)
	c.count(&connector.Result{Status: connector.StatusDropped, Reason: "of a later version", Chunks: -1, Bytes: -1}, 0)
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
	if !slices.Equal(took, durations{100e-6, 7e-6, 0}) || !slices.Equal(ask, durations{10e-6}) || !slices.Equal(move, durations{50e-6}) || !slices.Equal(wait, durations{9e-6, 0, 0}) {
		t.Errorf("told of %v, %v, %v, %v s", took, ask, move, wait)
	}
	(&jobCounters{}).count(&connector.Result{Status: connector.StatusOK, Asked: 1}, 0) // nobody wants to know
}
