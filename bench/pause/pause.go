// Package pause is how benchmarks let time pass.
package pause

import (
	"context"
	"time"
)

// For waits so long, or returns why the context ended before.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
