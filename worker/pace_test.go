package worker

import (
	"testing"
	"time"
)

func TestStoresRestAsThePaceWants(t *testing.T) {
	began := time.Now()
	for _, c := range []struct {
		took time.Duration
		pace int
		want time.Duration
	}{
		{time.Millisecond, 100, 0},
		{time.Millisecond, 50, time.Millisecond},
		{time.Millisecond, 25, 3 * time.Millisecond},
		{time.Hour, 50, maxPaced}, // the machine was stopped
	} {
		p := pacer{pace: c.pace}
		if d := p.due(began); d != 0 {
			t.Errorf("at %d %%: rests %v before the first piece", c.pace, d)
		}
		ended := began.Add(c.took)
		p.copied(began, ended)
		if got := p.due(ended); got != c.want {
			t.Errorf("after %v at %d %%: rests %v, want %v", c.took, c.pace, got, c.want)
		}
		// What passed meanwhile, in publishing or without a job, was rest.
		if got := p.due(ended.Add(c.want)); got != 0 {
			t.Errorf("after %v at %d %%: rests %v more", c.took, c.pace, got)
		}
	}
}

// Whatever the pace, what is copied is published soon: the rests between a batch's
// first piece and its last come to less than two seconds.
func TestABatchIsPublishedSoonAtAnyPace(t *testing.T) {
	const batchBytes = 64 << 20
	began := time.Now()
	for pace := 1; pace <= 100; pace++ {
		bytes := pacedBatch(batchBytes, pace)
		p := pacer{pace: pace}
		p.copied(began, began.Add(maxPaced))
		rests := time.Duration((bytes-1)/storePieceBytes) * p.due(began.Add(maxPaced))
		if rests > 2*time.Second || bytes < storePieceBytes || bytes > batchBytes {
			t.Errorf("at %d %%: a batch of %d bytes, which rests %v", pace, bytes, rests)
		}
	}
	if got := pacedBatch(1000, 1); got != 1000 {
		t.Errorf("a batch is of 1000 bytes at most, got %d", got)
	}
}

// What a job waited while it moved is no part of its copies' time.
func TestWaitsAreNotCopies(t *testing.T) {
	var moving times
	moving.answered(1, time.Minute)
	moving.at = moving.at.Add(-time.Hour)
	if moving.moved(time.Minute + time.Hour); moving.move < 0 || moving.move >= time.Hour {
		t.Errorf("of an hour in which the job waited, it copied %v", moving.move)
	}
}
