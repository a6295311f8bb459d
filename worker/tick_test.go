package worker

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// A tick wakes a pipeline that waits, once; a job and the end of the queue go before it.
func TestTickMakesAPipelineGoRound(t *testing.T) {
	q := newQueue(10, 1<<20)
	var seen uint64
	rounds := make(chan bool)
	go func() {
		defer close(rounds)
		for {
			j, open := q.nextLoad(&seen)
			if !open {
				return
			}
			rounds <- j != nil
		}
	}()
	for range 3 {
		q.tick()
		if job := <-rounds; job {
			t.Fatal("a tick brought a job")
		}
	}
	j := &job{id: 1, load: &connector.LoadJob{}, cancel: func() {}}
	if err := q.add(j); err != nil {
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
