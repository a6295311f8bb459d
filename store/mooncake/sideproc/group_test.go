package sideproc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
	"golang.org/x/sys/unix"
)

// TestWrapper: an interpreter in another process than the one that was started is
// refused with a sentence, and does not stay.
func TestWrapper(t *testing.T) {
	t.Parallel()
	cfg, _ := player(t, "wrapper", long)
	e := run(t, cfg)
	health := await(t, e, func(h mooncake.Health) bool { return strings.Contains(h.Reason, "wrapper") })
	_, numbers, _ := strings.Cut(health.Reason, "was started (")
	var pid, wrapper int
	if n, err := fmt.Sscanf(numbers, "%d, not %d", &pid, &wrapper); n != 2 || pid == wrapper {
		t.Fatalf("reason %q: %v", health.Reason, err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return // gone already
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("process %d outlives its wrapper: %v", pid, err)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return
	}
}

// TestLeftLog: what a process leaves behind, out of its group and with its log
// open, keeps nobody.
func TestLeftLog(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "hold")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	hold, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	limits := long
	limits.FirstPause, limits.LongestPause = time.Hour, time.Hour
	cfg, _ := player(t, "leaves", limits)
	cfg.Environ, cfg.Log = append(cfg.Environ, holdVariable+"="+pipe), quiet(t)
	e := sideproc.New(cfg)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	await(t, e, func(h mooncake.Health) bool { return strings.Contains(h.Reason, "exit status 3") })
	stop()
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		t.Error("Run waits for a process that is not its own")
		_ = hold.Close()
		<-ended
	}
}
