package mooncakec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// session is the calls of one client. It takes calls until it is condemned, and
// none while one of them is late.
//
// INVARIANT: the client is destroyed when no call is under way, and what a call
// that may go on was about is given back after that.
type session struct {
	c      *connection
	limits Limits
	hold   func([]mooncake.Range) func()
	tell   func()                   // called without mu when refusal changes
	slots  [laneCount]chan struct{} // taken by calls under way
	over   chan struct{}            // closed when the client is destroyed
	left   chan struct{}            // closed when nothing is waited for any more

	mu struct {
		sync.Mutex
		underway int
		drained  chan struct{} // closed when nothing is under way; nil unless asked for
		late     int           // calls under way beyond their limits
		lateWhy  error         // of the last one
		why      error         // why it was condemned
		// down is closed while there is a refusal.
		down chan struct{}
		// condemned is closed with why.
		condemned chan struct{}
	}
}

// call is one under way.
type call struct {
	lane    int
	begun   time.Time
	timer   *time.Timer
	expired chan struct{} // closed at the limit
	late    bool          // guarded by session.mu
	release func()        // of what is held; guarded by session.mu
	// Set before done is closed, which is when the ranges are the caller's again.
	answers []mooncake.Answer
	err     error
	done    chan struct{}
}

func newSession(c *connection, limits Limits, hold func([]mooncake.Range) func(), tell func()) *session {
	s := &session{c: c, limits: limits, hold: hold, tell: tell, over: make(chan struct{}), left: make(chan struct{})}
	for i := range s.slots {
		s.slots[i] = make(chan struct{}, lanes[i].width)
	}
	s.mu.down, s.mu.condemned = make(chan struct{}), make(chan struct{})
	return s
}

// refusal returns why no call is taken, nil when calls are.
func (s *session) refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusalLocked()
}

func (s *session) refusalLocked() error {
	switch {
	case s.mu.late > 0: // first: the other waits for it
		return fmt.Errorf("%w: %w", store.ErrUnavailable, s.mu.lateWhy)
	case s.mu.why != nil:
		return fmt.Errorf("%w: %w", store.ErrUnavailable, s.mu.why)
	}
	return nil
}

// condemn makes the session end.
func (s *session) condemn(why error) {
	s.mu.Lock()
	if s.mu.why != nil {
		s.mu.Unlock()
		return
	}
	before := s.refusalLocked()
	s.mu.why = why
	close(s.mu.condemned)
	s.changedLocked(before)
	s.mu.Unlock()
	s.tell()
}

// changedLocked keeps down, when there was a refusal before or not.
func (s *session) changedLocked(before error) {
	switch after := s.refusalLocked(); {
	case before == nil && after != nil:
		close(s.mu.down)
	case before != nil && after == nil:
		s.mu.down = make(chan struct{})
	}
}

// begin waits for a turn.
func (s *session) begin(ctx context.Context, number int) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", mooncake.ErrNoTurn, err)
	}
	s.mu.Lock()
	down, err := s.mu.down, s.refusalLocked()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	l := &lanes[number]
	select {
	case s.slots[number] <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %d calls before: %w", mooncake.ErrNoTurn, l.width, ctx.Err())
	case <-down:
		if err := s.refusal(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: it was down", store.ErrUnavailable)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusalLocked(); err != nil {
		<-s.slots[number]
		return nil, err
	}
	c := &call{lane: number, begun: time.Now(), expired: make(chan struct{}), done: make(chan struct{})}
	s.mu.underway++
	c.timer = time.AfterFunc(l.limit(&s.limits), func() { s.expire(c) })
	return c, nil
}

// expire notes that a call is late.
func (s *session) expire(c *call) {
	s.mu.Lock()
	if c.timer == nil { // it has returned
		s.mu.Unlock()
		return
	}
	before := s.refusalLocked()
	c.late = true
	s.mu.late++
	l := &lanes[c.lane]
	s.mu.lateWhy = fmt.Errorf("the Mooncake library has not returned from %s in %s", l.op, l.limit(&s.limits))
	s.changedLocked(before)
	close(c.expired)
	s.mu.Unlock()
	s.tell()
}

// returned notes that the library has returned from a call. goesOn: what it began
// may not be over.
func (s *session) returned(c *call, goesOn error) {
	if goesOn != nil {
		s.condemn(goesOn)
	}
	s.mu.Lock()
	before := s.refusalLocked()
	c.timer.Stop()
	c.timer = nil
	wasLate := c.late
	if wasLate {
		s.mu.late--
	}
	s.changedLocked(before)
	s.mu.underway--
	if s.mu.underway == 0 && s.mu.drained != nil {
		close(s.mu.drained)
		s.mu.drained = nil
	}
	<-s.slots[c.lane]
	s.mu.Unlock()
	if wasLate {
		s.tell()
	}
}

var errClosed = errors.New("the library's client is not set up any more")

// run serves until ctx is done or the session is condemned, and ends the client.
func (s *session) run(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(watching) })
	select {
	case <-ctx.Done():
		s.condemn(ctx.Err())
	case <-s.mu.condemned:
	}
	stop()
	watch.Wait()
	s.mu.Lock()
	why := s.mu.why
	drained := make(chan struct{})
	if s.mu.underway == 0 {
		close(drained)
	} else {
		s.mu.drained = drained
	}
	s.mu.Unlock()
	if !s.await(ctx, drained) {
		close(s.left)
		return fmt.Errorf("%w from %w", ErrLeft, s.refusal())
	}
	go func() {
		s.c.close()
		close(s.over)
	}()
	if !s.await(ctx, s.over) {
		close(s.left)
		return fmt.Errorf("%w from the end of its client", ErrLeft)
	}
	return why
}

// await waits, and not for ever when ctx is done.
func (s *session) await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(s.limits.Close)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// watch asks the client now and then whether it is set up.
func (s *session) watch(ctx context.Context) {
	ticker := time.NewTicker(s.limits.Watch)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.mu.condemned:
			return
		case <-ticker.C:
		}
		answers, err := s.call(ctx, laneWatch, nil, func() ([]mooncake.Answer, error) {
			if s.c.client.closed() {
				return []mooncake.Answer{0}, nil
			}
			return []mooncake.Answer{1}, nil
		})
		if err == nil && answers[0] == 0 {
			s.condemn(errClosed)
		}
	}
}
