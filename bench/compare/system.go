package compare

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/pause"
)

// System is an engine with what its connector needs. Its methods are called by one
// goroutine at a time, except Complete.
type System interface {
	Name() string
	// Complete runs one request.
	Complete(ctx context.Context, request Request) (Answer, error)
	// Forget empties the engine's own cache, and with external its store too.
	Forget(ctx context.Context, external bool) error
	// Idle tells whether no request runs or waits and no block is held.
	Idle(ctx context.Context) (bool, error)
	// CPUTime is what all processes of the system have used.
	CPUTime() (time.Duration, error)
	// HoldPrograms keeps in memory, until Close, what its processes have mapped of
	// files by now, and returns how many bytes that is. It is called once.
	HoldPrograms() (int64, error)
	// Close ends all of its processes and waits.
	Close() error
}

// Shared is what all systems of a model use: processes, or none.
type Shared interface {
	// CPUTime is what its processes have used.
	CPUTime() (time.Duration, error)
	// Close ends them and waits. The systems have ended before.
	Close() error
}

// Launcher starts a system for a model.
type Launcher interface {
	// Prepare makes what all systems of a model share.
	Prepare(ctx context.Context, model string, storeBytes int64) (Shared, error)
	// Launch returns once the engine serves.
	Launch(ctx context.Context, name, model string, storeBytes int64, kvGiB int) (System, error)
}

// Quiet is when a system counts as done with what it was asked: idle by its own
// account, and using next to no CPU time over a window.
type Quiet struct {
	// Window is how long it is watched, Budget what it may use meanwhile.
	Window, Budget time.Duration
	// Limit is when waiting for it fails.
	Limit time.Duration
}

// DefaultQuiet allows for the pollers of idle engines.
func DefaultQuiet() Quiet {
	return Quiet{Window: 150 * time.Millisecond, Budget: 20 * time.Millisecond, Limit: 90 * time.Second}
}

// settle waits until the system is quiet: what it was to store is stored.
func (q Quiet) settle(ctx context.Context, s System) error {
	ctx, cancel := context.WithTimeoutCause(ctx, q.Limit, fmt.Errorf("%s is not quiet after %s", s.Name(), q.Limit))
	defer cancel()
	for {
		idle, err := s.Idle(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
		before, err := s.CPUTime()
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
		if err := pause.For(ctx, q.Window); err != nil {
			return err
		}
		after, err := s.CPUTime()
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
		if idle && after-before <= q.Budget {
			return nil
		}
	}
}
