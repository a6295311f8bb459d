package worker

import (
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/jobqueue"
)

// A tick wakes a pipeline that waits, once; a job and the end of the queue go before it.
func TestTickMakesAPipelineGoRound(t *testing.T) {
	limits := jobqueue.Limits{Jobs: 10, Bytes: 1 << 20, AllBytes: 1 << 20, Loads: 1, LoadPieces: 1, PassedOver: 1}
	all := newSchedule(limits, time.Hour)
	q := all.open(nil)
	var seen uint64
	rounds := make(chan bool)
	go func() {
		defer close(rounds)
		for {
			j, open := q.nextStore(&seen)
			if !open {
				return
			}
			rounds <- j != nil
		}
	}()
	for range 3 {
		all.tick()
		if job := <-rounds; job {
			t.Fatal("a tick brought a job")
		}
	}
	j := &job{id: 1, store: &connector.StoreBatch{}, cancel: func() {}}
	if _, err := q.add(j); err != nil {
		t.Fatal(err)
	}
	if job := <-rounds; !job {
		t.Fatal("a job brought nothing")
	}
	q.close()
	if _, more := <-rounds; more {
		t.Error("a closed queue goes round")
	}
}
