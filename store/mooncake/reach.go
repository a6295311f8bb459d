package mooncake

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// probeLimit is how long a master may take to answer the question whether it does.
const probeLimit = 2 * time.Second

// reach finds out whether the cluster may be asked, and makes up for removals that
// are owed.
func (s *Store) reach(ctx context.Context) error {
	if err := s.probe(ctx); err != nil {
		return err
	}
	return s.makeUp(ctx)
}

// probe asks the breaker whether the cluster may be asked. When it was silent
// before, it is asked a small question first. That has its own time: how long this
// caller waits says nothing of the master.
func (s *Store) probe(ctx context.Context) error {
	s.mu.Lock()
	what, why := s.breaker.ask(s.cfg.Now()), s.breaker.why
	switch {
	case what == probe && s.closed: // nobody would wait for it
		s.breaker.gaveUp()
		what, why = deny, errClosed
	case what == probe:
		s.calls.Add(1)
	}
	s.mu.Unlock()
	switch what {
	case pass:
		return nil
	case deny:
		return fmt.Errorf("not asked, since it did not answer before: %w", why)
	case probe:
	}
	result := make(chan error, 1)
	go func() {
		defer s.calls.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeLimit)
		defer cancel()
		err := s.askNothing(limited)
		s.noteProbe(err)
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noteProbe tells the breaker what became of its probe.
func (s *Store) noteProbe(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.breaker.answered()
	case errors.Is(err, ErrNoTurn):
		s.breaker.gaveUp()
	default:
		s.breaker.failed(s.cfg.Now(), err)
	}
}

// askNothing asks the master for a key that nobody has.
func (s *Store) askNothing(ctx context.Context) error {
	answers, err := s.cfg.Engine.Exist(ctx, []string{"mooncake-sidecar@nothing"})
	if err == nil {
		err = goneIn("exist", answers)
	}
	return err
}

// goneIn returns an error when an answer says that the master is gone.
func goneIn(op string, answers []Answer) error {
	for _, a := range answers {
		if code := a.Code(); code.MasterGone() {
			return &Error{Op: op, Code: code}
		}
	}
	return nil
}

// allGone tells whether every answer says that the master is gone.
func allGone(answers []Answer) bool {
	for _, a := range answers {
		if !a.Code().MasterGone() {
			return false
		}
	}
	return len(answers) > 0
}
