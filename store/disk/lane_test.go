package disk

import (
	"errors"
	"testing"
	"time"
)

// Every call is timed once, also one that comes after its deadline, and before
// its lane is free again.
func TestCallsAreTimed(t *testing.T) {
	took := make(chan time.Duration, 2)
	free := newLanes(1, 1, func(n int) []byte { return make([]byte, n) }, func(d time.Duration) { took <- d })
	l := free.take(t.Context(), time.Minute)
	failure := errors.New("failed")
	if err := l.run(time.Minute, func() error { return failure }); !errors.Is(err, failure) || len(took) != 1 {
		t.Errorf("%v, timed %d times", err, len(took))
	}
	<-took
	goOn := make(chan struct{})
	if err := l.run(time.Nanosecond, func() error { <-goOn; return nil }); !errors.Is(err, errLate) || len(took) != 0 {
		t.Errorf("%v, timed %d times", err, len(took))
	}
	close(goOn)
	if free.take(t.Context(), time.Minute) == nil || len(took) != 1 {
		t.Errorf("a late call is timed %d times", len(took))
	}
}
