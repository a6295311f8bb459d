package level_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// TestEqualQuestions: who asks a slow master again what is being asked waits for that
// answer, and asks it nothing.
func TestEqualQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
			if op == "exist" {
				time.Sleep(300 * time.Millisecond)
			}
			return mooncaketest.Fault{}
		})
		for range 10 {
			waits, cancel := context.WithTimeout(t.Context(), 25*time.Millisecond)
			if err := r.ask(waits, 1, 2); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("asked: %v", err)
			}
			cancel()
		}
		r.expect(1, kv.Unknown)
		if err := r.ask(t.Context(), 1, 2); err != nil {
			t.Fatal(err)
		}
		r.expect(1, kv.Absent)
		if s := r.Stats(); s.Questions != 1 || s.Asked != 2 {
			t.Errorf("%d questions about %d chunks", s.Questions, s.Asked)
		}
		if err := r.ask(t.Context(), 2, 1); err != nil { // another one
			t.Fatal(err)
		}
		if err := r.ask(t.Context(), 1, 2); err != nil { // the first is answered
			t.Fatal(err)
		}
		if s := r.Stats(); s.Questions != 3 {
			t.Errorf("%d questions", s.Questions)
		}
	})
}
