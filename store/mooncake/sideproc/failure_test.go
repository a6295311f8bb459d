package sideproc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
	"golang.org/x/sys/unix"
)

// quick are limits that tests wait for; long are those that no test must meet.
var (
	quick = sideproc.Limits{Start: time.Minute, Question: 2 * time.Second, Transfer: 2 * time.Second, Ping: 20 * time.Millisecond, Pong: 30 * time.Second, Close: time.Second,
		FirstPause: 10 * time.Millisecond, LongestPause: 50 * time.Millisecond}
	long = sideproc.Limits{Start: time.Hour, Question: time.Hour, Transfer: time.Hour, Ping: time.Hour, Pong: time.Hour, Close: time.Hour,
		FirstPause: 10 * time.Millisecond, LongestPause: 50 * time.Millisecond}
)

// player is the configuration for a process that this program plays.
func player(t testing.TB, role string, limits sideproc.Limits) (sideproc.Config, []byte) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	memory := newMemory(t, 4<<20)
	return sideproc.Config{
		Python: self, Memory: memory, Limits: limits, Environ: append(os.Environ(), roleVariable+"="+role),
		Cluster: cluster.Config{MasterServerAddress: "127.0.0.1:1", MetadataServer: "P2PHANDSHAKE", LocalHostname: "127.0.0.1"},
	}, memory.Bytes()
}

// TestPlayedEngine is the behaviour of an engine, without Mooncake: frames, lanes
// and the memory are ours.
func TestPlayedEngine(t *testing.T) {
	t.Parallel()
	cfg, memory := player(t, "good", long)
	e := run(t, cfg)
	await(t, e, isReady)
	mooncaketest.TestEngine(t, mooncaketest.Rig{Engine: e, Memory: memory})
}

// TestBadProcesses: what is no side process is said, and tried again.
func TestBadProcesses(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]string{
		"mute":          "not ready in 1s",
		"exits":         "no reason at all",
		"other version": "version 99",
		"no JSON":       "malformed frame",
		"endless":       "malformed frame",
		"fails":         "RPC_FAIL (-900)",
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			limits := quick
			if role == "mute" {
				limits.Start = time.Second
			}
			cfg, _ := player(t, role, limits)
			e := run(t, cfg)
			health := await(t, e, func(h mooncake.Health) bool { return strings.Contains(h.Reason, want) })
			if health.Ready || health.Starts != 0 {
				t.Errorf("%+v", health)
			}
			if _, err := e.Exist(t.Context(), []string{"key"}); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("a call says %v, want ErrUnavailable and %q", err, want)
			}
		})
	}
	t.Run("no interpreter", func(t *testing.T) {
		cfg, _ := player(t, "good", quick)
		cfg.Python = "/nonexistent/python"
		e := run(t, cfg)
		await(t, e, func(h mooncake.Health) bool {
			return strings.Contains(h.Reason, "/nonexistent/python") && strings.Contains(h.Reason, "store_python")
		})
	})
}

func oneObject(key string) []mooncake.Object {
	return []mooncake.Object{{Key: key, Range: mooncake.Range{Bytes: 64}}}
}

// TestHangingCalls: a call that is not answered costs its limit and the process;
// the next process serves.
func TestHangingCalls(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*sideproc.Engine, string) error{
		"exist": func(e *sideproc.Engine, key string) error {
			_, err := e.Exist(context.Background(), []string{key})
			return err
		},
		"get": func(e *sideproc.Engine, key string) error {
			_, err := e.Get(context.Background(), oneObject(key))
			return err
		},
		"remove": func(e *sideproc.Engine, key string) error {
			_, err := e.Remove(context.Background(), []string{key})
			return err
		},
		"put": func(e *sideproc.Engine, key string) error {
			_, err := e.Put(context.Background(), mooncake.Replication{}, oneObject(key))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _ := player(t, "good", quick)
			e := run(t, cfg)
			await(t, e, isReady)
			if err := call(e, "x@hang"); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no answer to "+name+" in 2s") {
				t.Errorf("%v", err)
			}
			await(t, e, func(h mooncake.Health) bool { return h.Ready && h.Starts >= 2 })
			if err := call(e, "fine"); err != nil {
				t.Errorf("after the restart: %v", err)
			}
		})
	}
}

// TestLanes: hanging transfers, as many as there are threads, do not make a
// question wait; and one transfer more waits no longer than its context.
func TestLanes(t *testing.T) {
	t.Parallel()
	cfg, _ := player(t, "good", long)
	e := run(t, cfg)
	await(t, e, isReady)
	var hanging sync.WaitGroup
	var failed atomic.Int64
	for i := range 4 {
		hanging.Go(func() {
			o := oneObject(fmt.Sprintf("%d@hang", i))
			o[0].Range.Offset = uint64(i) * 64
			if _, err := e.Get(context.Background(), o); errors.Is(err, store.ErrUnavailable) {
				failed.Add(1)
			}
		})
	}
	for range 100 {
		if _, err := e.Exist(t.Context(), []string{"key"}); err != nil {
			t.Fatal(err)
		}
	}
	// A question's caller is answered when its context is done, though the process is not.
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := e.Exist(ctx, []string{"x@hang"}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, mooncake.ErrNoTurn) {
		t.Errorf("exist: %v", err)
	}
	if _, err := e.Exist(t.Context(), []string{"key"}); err != nil { // by the other thread
		t.Errorf("exist: %v", err)
	}
	o := oneObject("5@hang")
	o[0].Range.Offset = 4096
	if _, err := e.Get(ctx, o); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, mooncake.ErrNoTurn) {
		t.Errorf("get: %v", err)
	}
	// The transfers end with the process, not before.
	if failed.Load() != 0 {
		t.Error("a transfer ended while the process lived")
	}
	kill(t, e, syscall.SIGKILL)
	hanging.Wait()
	if failed.Load() != 4 {
		t.Errorf("%d of 4 transfers failed as unavailable", failed.Load())
	}
}

// kill signals the engine's process.
func kill(t *testing.T, e *sideproc.Engine, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(e.PID(), signal); err != nil {
		t.Fatal(err)
	}
}

// TestDies: a process that dies, by itself or not, fails its calls and is replaced.
func TestDies(t *testing.T) {
	t.Parallel()
	cfg, _ := player(t, "good", long)
	e := run(t, cfg)
	await(t, e, isReady)
	if _, err := e.Get(t.Context(), oneObject("x@die")); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "dying of x@die") {
		t.Errorf("%v", err)
	}
	await(t, e, func(h mooncake.Health) bool { return h.Ready && h.Starts == 2 })
	kill(t, e, syscall.SIGKILL)
	await(t, e, func(h mooncake.Health) bool { return h.Ready && h.Starts == 3 })
	// What makes no sense costs the process, too.
	if _, err := e.Exist(t.Context(), []string{"x@short"}); err == nil {
		t.Error("an answer that is too short was taken")
	}
	await(t, e, func(h mooncake.Health) bool { return h.Ready && h.Starts == 4 })
	if _, err := e.Exist(t.Context(), []string{"key"}); err != nil {
		t.Error(err)
	}
}

// TestStopped: a stopped process is found out without a call, and replaced.
func TestStopped(t *testing.T) {
	t.Parallel()
	limits := quick
	limits.Pong = 2 * time.Second
	cfg, _ := player(t, "good", limits)
	e := run(t, cfg)
	await(t, e, isReady)
	kill(t, e, syscall.SIGSTOP)
	health := await(t, e, func(h mooncake.Health) bool { return !h.Ready })
	if !strings.Contains(health.Reason, "no answer to ping") {
		t.Errorf("reason %q", health.Reason)
	}
	await(t, e, func(h mooncake.Health) bool { return h.Ready && h.Starts >= 2 })
}

// TestRefusedPing: nothing watches a process that does not answer pings as it must:
// it is replaced.
func TestRefusedPing(t *testing.T) {
	t.Parallel()
	cfg, _ := player(t, "no pings", quick)
	e := run(t, cfg)
	await(t, e, func(h mooncake.Health) bool { return strings.Contains(h.Reason, "what is a ping?") })
	await(t, e, func(h mooncake.Health) bool { return h.Starts >= 2 })
}

// TestEnds: Run leaves no process behind, whether that ends by itself or not.
func TestEnds(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"good", "stays"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			cfg, _ := player(t, role, quick)
			cfg.Log = quiet(t)
			e := sideproc.New(cfg)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- e.Run(ctx) }()
			await(t, e, isReady)
			pid := e.PID()
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d is left: %v", pid, err)
			}
			if _, err := e.Exist(t.Context(), []string{"key"}); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("a call afterwards: %v", err)
			}
		})
	}
}

// TestDiesWithUs: a side process does not outlive its daemon, not even stopped.
func TestDiesWithUs(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), self)
	daemon.Env = append(os.Environ(), roleVariable+"=parent")
	daemon.Stderr = os.Stderr
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = daemon.Wait() }() // it was killed
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("process %d outlives its daemon: %v", pid, err)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return
	}
}

// counting counts log lines and keeps the longest.
type counting struct {
	slog.Handler
	mu      sync.Mutex
	lines   int
	longest int
	last    string
}

func (c *counting) Enabled(context.Context, slog.Level) bool { return true }

func (c *counting) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines++
	r.Attrs(func(a slog.Attr) bool {
		c.longest = max(c.longest, len(a.Value.String()))
		return true
	})
	c.last = r.Message
	return nil
}

// TestChatty: what a process prints is bounded in the log.
func TestChatty(t *testing.T) {
	t.Parallel()
	cfg, _ := player(t, "chatty", long)
	log := &counting{}
	cfg.Log = slog.New(log)
	e := run(t, cfg)
	await(t, e, isReady)
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.lines < 10 || log.lines > 200 || log.longest > 1024 {
		t.Errorf("%d lines logged, the longest has %d bytes", log.lines, log.longest)
	}
}
