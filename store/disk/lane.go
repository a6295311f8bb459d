package disk

import (
	"context"
	"time"
)

// lane is one I/O call at a time, with the buffer that it reads or writes. A call
// that hangs keeps both; the lane goes home when the kernel lets go.
//
// INVARIANT: the buffer is touched only by who has taken the lane, and by the
// call that it runs.
type lane struct {
	buf  []byte
	home lanes
	took func(time.Duration) // told the time of each call; nil: nobody is
}

// lanes are the free lanes of a kind.
type lanes chan *lane

func newLanes(n, bytes int, buffer func(bytes int) []byte, took func(time.Duration)) lanes {
	free := make(lanes, n)
	for range n {
		free <- &lane{buf: buffer(bytes), home: free, took: took}
	}
	return free
}

// take waits for a lane for at most d. Nil: none became free.
func (free lanes) take(ctx context.Context, d time.Duration) *lane {
	select {
	case l := <-free:
		return l
	default:
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case l := <-free:
		return l
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

func (l *lane) release() { l.home <- l }

// run makes a call and returns its error, or errLate after d: then the lane is
// the call's, and the caller must neither release it nor look at its buffer.
//
// REQUIRES: the caller has taken the lane. What call touches besides the buffer
// is its own.
func (l *lane) run(d time.Duration, call func() error) error { return l.runUntil(nil, d, call) }

// runUntil is run that does not wait for longer than until over is closed.
func (l *lane) runUntil(over <-chan struct{}, d time.Duration, call func() error) error {
	done := make(chan error, 1)
	go func() {
		began := time.Now()
		err := call()
		if l.took != nil {
			l.took(time.Since(began))
		}
		done <- err
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	case <-over:
	}
	// This one waits in the caller's stead: two goroutines a lane are the most.
	go func() {
		<-done
		l.release()
	}()
	return errLate
}
