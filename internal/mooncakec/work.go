package mooncakec

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// work makes a call, and ends it when the library does not touch its ranges any
// more. It runs in a goroutine of its own, which nothing else can end.
func (s *session) work(c *call, do func() ([]mooncake.Answer, error)) {
	answers, err := do()
	var goesOn error
	if time.Since(c.begun) >= s.limits.Failure {
		op, transfer := lanes[c.lane].op, lanes[c.lane].transfer
		if code := native.MayGoOn(c.lane == lanePut, answers); code != 0 && transfer {
			goesOn = fmt.Errorf("%s: a transfer was given up: %w", op, &mooncake.Error{Op: op, Code: code})
		} else if err != nil && transfer {
			goesOn = fmt.Errorf("%s: a transfer failed: %w", op, err)
		}
	}
	s.returned(c, goesOn)
	if goesOn != nil {
		answers, err = nil, fmt.Errorf("%w: %w", store.ErrUnavailable, goesOn)
		select {
		case <-s.over:
		case <-s.left:
			return // and what is held stays so
		}
	}
	s.mu.Lock()
	c.answers, c.err = answers, err
	close(c.done)
	release := c.release
	s.mu.Unlock()
	if release != nil {
		release()
	}
}

// holding keeps a late call's ranges out of use. It returns false when the call is
// over.
func (s *session) holding(c *call, ranges []mooncake.Range) bool {
	release := s.hold(ranges)
	s.mu.Lock()
	select {
	case <-c.done:
		s.mu.Unlock()
		release()
		return false
	default:
	}
	c.release = release
	s.mu.Unlock()
	return true
}

// call makes a call. ranges are those of a transfer.
func (s *session) call(ctx context.Context, number int, ranges []mooncake.Range, do func() ([]mooncake.Answer, error)) ([]mooncake.Answer, error) {
	c, err := s.begin(ctx, number)
	if err != nil {
		return nil, err
	}
	go s.work(c, do)
	gone, expired := ctx.Done(), c.expired
	if lanes[number].transfer {
		gone = nil
		if s.hold == nil {
			expired = nil
		}
	}
	select {
	case <-c.done:
		return c.answers, c.err
	case <-gone:
		return nil, ctx.Err()
	case <-s.left:
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, ErrLeft)
	case <-expired:
	}
	if lanes[number].transfer && !s.holding(c, ranges) {
		return c.answers, c.err
	}
	l := &lanes[number]
	return nil, fmt.Errorf("%w: the Mooncake library has not returned from %s in %s", store.ErrUnavailable, l.op, l.limit(&s.limits))
}
