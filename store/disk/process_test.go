package disk_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/diskio"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// childVariable names the directory to a process that is going to be killed.
const childVariable = "MOONCAKE_SIDECAR_TEST_DISK_DIR"

// realOptions are of a tier on a real disk, whose regions are used again soon.
func realOptions() disk.Options {
	return disk.Options{Bytes: 65 << 20, RegionBytes: 4 << 20, BufferBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)}
}

// sizeOf gives chunk i from 4 KiB to 3 MiB in one to three shards.
func sizeOf(i int) (shards, bytes int) {
	r := rand.New(rand.NewPCG(uint64(i), 77))
	return 1 + r.IntN(3), 4096 << r.IntN(9)
}

// serve runs a tier on a real disk until the test ends.
func serve(t testing.TB, path string, opts disk.Options) *disk.Tier {
	t.Helper()
	inner, err := disk.New(diskio.New(path), opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- inner.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	for !inner.Stats().InService {
		select {
		case err := <-done:
			t.Fatalf("Run() = %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	return inner
}

// TestChildProcess is the process that is killed: it writes chunk after chunk and
// says which are done.
func TestChildProcess(t *testing.T) {
	path := os.Getenv(childVariable)
	if path == "" {
		t.Skip("only as a child of TestKilledProcess")
	}
	from, err := strconv.Atoi(os.Getenv(childVariable + "_FROM"))
	if err != nil {
		t.Fatal(err)
	}
	r := &tier{Tier: serve(t, path, realOptions())}
	for i := from; ; i++ {
		shards, bytes := sizeOf(i)
		source := content(i, shards, bytes)
		for !r.Demote(chunkFor(i, source), source, func(err error) {
			if err == nil {
				fmt.Println("done", i)
			}
		}) {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// TestKilledProcess: of a process that was killed at any moment, what was written
// last is served by the next, and every byte is right.
func TestKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tier")
	from, next, served := 0, 0, 0
	for round := range 6 {
		child := exec.Command(os.Args[0], "-test.run=^TestChildProcess$", "-test.count=1")
		child.Env = append(os.Environ(), childVariable+"="+path, childVariable+"_FROM="+strconv.Itoa(next))
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		// Killed after so many chunks, wherever it then is.
		var done []int
		want := 20 + rand.IntN(100)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var i int
			if n, _ := fmt.Sscanf(strings.TrimSpace(lines.Text()), "done %d", &i); n == 1 {
				done = append(done, i)
				next = max(next, i+1)
			}
			if len(done) == want {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = child.Wait() // killed
		if len(done) < want {
			t.Fatalf("round %d: the child ended after %d of %d chunks", round, len(done), want)
		}
		next += 100 // past what was under way
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			r := &tier{Tier: serve(t, path, realOptions())}
			hits := map[int]bool{}
			for i := from; i < next; i++ {
				shards, bytes := sizeOf(i)
				key := keyFor(i)
				if _, there := r.Has(&key); !there {
					continue
				}
				if err := r.check(t, i, shards, bytes); err != nil {
					t.Errorf("chunk %d was promised: %v", i, err)
					continue
				}
				hits[i] = true
				served++
			}
			// The last 20 MiB of the 64 are there.
			recent := 0
			for k := len(done) - 1; k >= 0 && recent < 20<<20; k-- {
				shards, bytes := sizeOf(done[k])
				recent += shards * bytes
				if !hits[done[k]] {
					t.Errorf("chunk %d, the %dth before the kill, is lost", done[k], len(done)-k)
				}
			}
		})
	}
	t.Logf("%d chunks were served after 6 kills", served)
}

// check fetches a chunk and compares its bytes.
func (r *tier) check(t *testing.T, i, shards, bytes int) error {
	inner := &tier{Tier: r.Tier, t: t}
	err := inner.get(i, shards, bytes)
	if errors.Is(err, errMiss) {
		return fmt.Errorf("gone in between: %w", err)
	}
	return err
}
