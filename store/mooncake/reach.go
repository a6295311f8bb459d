package mooncake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// probeLimit is how long a master may take to answer the question whether it does.
const probeLimit = 2 * time.Second

// Reach finds out whether the cluster may be asked, and makes up for removals that
// are owed. Call it now and then: it is what finds out that a cluster answers again
// which nobody asks.
func (c *Client) Reach(ctx context.Context) error {
	if !c.enter() {
		return errClosed
	}
	defer c.calls.Done()
	if health := c.cfg.Engine.Health(); !health.Ready { // the master has no part in it
		return fmt.Errorf("%w: %s", store.ErrUnavailable, health.Reason)
	}
	return c.reach(ctx)
}

// reach finds out whether the cluster may be asked, and makes up for removals that
// are owed.
func (c *Client) reach(ctx context.Context) error {
	if err := c.probe(ctx); err != nil {
		return err
	}
	return c.makeUp(ctx)
}

// probe asks the breaker whether the cluster may be asked. When it was silent
// before, it is asked a small question first. That has its own time: how long this
// caller waits says nothing of the master.
func (c *Client) probe(ctx context.Context) error {
	c.mu.Lock()
	what, why := c.breaker.ask(c.cfg.Now()), c.breaker.why
	switch {
	case what == probe && c.closed: // nobody would wait for it
		c.breaker.gaveUp()
		what, why = deny, errClosed
	case what == probe:
		c.calls.Add(1)
	}
	c.mu.Unlock()
	switch what {
	case pass:
		return nil
	case deny:
		return fmt.Errorf("not asked, since it did not answer before: %w", why)
	case probe:
	}
	result := make(chan error, 1)
	go func() {
		defer c.calls.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeLimit)
		defer cancel()
		err := c.askNothing(limited)
		c.noteProbe(err)
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
func (c *Client) noteProbe(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.breaker.answered()
	case errors.Is(err, ErrNoTurn):
		c.breaker.gaveUp()
	default:
		c.breaker.failed(c.cfg.Now(), err)
	}
}

// askNothing asks the master for a key that nobody has.
func (c *Client) askNothing(ctx context.Context) error {
	answers, err := c.cfg.Engine.Exist(ctx, []string{"mooncake-sidecar@nothing"})
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
