package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	why := errors.New("why")
	ended, end := context.WithCancelCause(context.Background())
	end(why)
	for name, c := range map[string]struct {
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		d    time.Duration
		took time.Duration
		want error
	}{
		"to the end":     {context.WithCancel, time.Hour, time.Hour, nil},
		"not at all":     {context.WithCancel, -1, 0, nil},
		"ended before":   {func(context.Context) (context.Context, context.CancelFunc) { return ended, func() {} }, time.Hour, 0, why},
		"ended, no wait": {func(context.Context) (context.Context, context.CancelFunc) { return ended, func() {} }, 0, 0, why},
		"ends meanwhile": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Minute, why)
		}, time.Hour, time.Minute, why},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := c.ctx(t.Context())
				defer cancel()
				begun := time.Now()
				if err := For(ctx, c.d); !errors.Is(err, c.want) || time.Since(begun) != c.took {
					t.Errorf("%v after %s, want %v after %s", err, time.Since(begun), c.want, c.took)
				}
			})
		})
	}
}
