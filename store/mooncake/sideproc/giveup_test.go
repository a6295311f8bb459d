package sideproc_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

// TestGivenUp: a transfer that was given up, or ended in an exception however soon, may
// write to its memory later. It ends with the process that could, and not before.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*sideproc.Engine) ([]mooncake.Answer, error){
		"get": func(e *sideproc.Engine) ([]mooncake.Answer, error) {
			return e.Get(context.Background(), oneObject("x@given up"))
		},
		"put": func(e *sideproc.Engine) ([]mooncake.Answer, error) {
			return e.Put(context.Background(), mooncake.Replication{}, oneObject("x@given up"))
		},
		"get raises": func(e *sideproc.Engine) ([]mooncake.Answer, error) {
			return e.Get(context.Background(), oneObject("x@raises"))
		},
		"put raises": func(e *sideproc.Engine) ([]mooncake.Answer, error) {
			return e.Put(context.Background(), mooncake.Replication{}, oneObject("x@raises"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := long
			limits.Failure = time.Nanosecond
			if strings.HasSuffix(name, "raises") {
				limits.Failure = time.Hour
			}
			cfg, memory := player(t, "good", limits)
			e := run(t, cfg)
			await(t, e, isReady)
			pid := e.PID()
			if answers, err := call(e); !errors.Is(err, store.ErrUnavailable) || !errors.As(err, new(*mooncake.Error)) {
				t.Errorf("%v, %v; want ErrUnavailable and Mooncake's code", answers, err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("the process lives: %v", err)
			}
			clear(memory[:64])
			for range 1000 {
				if string(memory[:4]) != "\x00\x00\x00\x00" {
					t.Fatal("memory was written after its transfer")
				}
			}
			await(t, e, func(h mooncake.Health) bool { return h.Ready && h.Starts == 2 })
		})
	}
}

// TestFailsAtOnce: a transfer that fails at once has ended, and costs no process.
func TestFailsAtOnce(t *testing.T) {
	t.Parallel()
	limits := long
	limits.Failure = time.Hour
	cfg, _ := player(t, "good", limits)
	e := run(t, cfg)
	await(t, e, isReady)
	answers, err := e.Get(t.Context(), oneObject("x@given up"))
	if err != nil || len(answers) != 1 || answers[0].Code() != mooncake.CodeTransferFailed {
		t.Errorf("%v, %v", answers, err)
	}
	if got := e.Health(); !got.Ready || got.Starts != 1 {
		t.Errorf("%+v", got)
	}
}
