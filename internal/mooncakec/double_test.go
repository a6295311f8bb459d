//go:build cgo && linux && (amd64 || arm64)

package mooncakec_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/mooncakec"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

// roleVariable makes this program play a part in a process of its own.
const roleVariable = "MOONCAKEC_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		fmt.Println(play(role))
		return
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// compile builds a program or a library.
func compile(t testing.TB, out string, arguments ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), out)
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	if said, err := exec.Command(compiler, append([]string{"-O1", "-Wall", "-Werror", "-pthread", "-o", path}, arguments...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", compiler, err, said)
	}
	return path
}

// double builds the test double: a library of its own for each test, so that what it
// counts is the test's.
func double(t testing.TB, defines ...string) string {
	t.Helper()
	arguments := []string{"-shared", "-fPIC", "testdata/double.c"}
	for _, d := range defines {
		arguments = append(arguments, "-D"+d)
	}
	return compile(t, "libmooncake_store.so", arguments...)
}

// rig is an engine that runs over a library.
type rig struct {
	*mooncakec.Engine
	t      testing.TB
	memory []byte
	end    context.CancelFunc
	ended  chan error
}

// quiet does not wait long; nothing a test wants happens by its limits.
var quiet = mooncakec.Limits{FirstPause: time.Millisecond, LongestPause: 10 * time.Millisecond, Question: time.Hour, Transfer: time.Hour, Failure: time.Hour, Watch: time.Hour, Close: time.Minute}

// start runs an engine; options are the double's.
func start(t testing.TB, library, options string, change func(*mooncakec.Config)) *rig {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, 4<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	cfg := mooncakec.Config{
		Library: library, Memory: memory, Limits: quiet, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Cluster: cluster.Config{MasterServerAddress: "127.0.0.1:1", MetadataServer: options, Protocol: "tcp", LocalHostname: "127.0.0.1"},
	}
	if change != nil {
		change(&cfg)
	}
	r := &rig{Engine: mooncakec.New(cfg), t: t, memory: memory, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	r.end = cancel
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-r.ended; errors.Is(err, mooncakec.ErrLeft) {
			t.Errorf("it has left: %v", err)
		}
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	return r
}

// await waits until the engine's health is as wanted.
func (r *rig) await(what string, want func(mooncake.Health) bool) mooncake.Health {
	r.t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		changed := r.Changed()
		health := r.Health()
		if want(health) {
			return health
		}
		select {
		case <-changed:
		case <-limit.C:
			r.t.Fatalf("never %s; it is %+v", what, health)
		}
	}
}

func (r *rig) ready() mooncake.Health {
	r.t.Helper()
	return r.await("ready", func(h mooncake.Health) bool { return h.Ready })
}

func (r *rig) says(reason string) mooncake.Health {
	r.t.Helper()
	return r.await("says "+reason, func(h mooncake.Health) bool { return !h.Ready && strings.Contains(h.Reason, reason) })
}

func object(key string, offset, bytes uint64) []mooncake.Object {
	return []mooncake.Object{{Key: key, Range: mooncake.Range{Offset: offset, Bytes: bytes}}}
}

// text returns what the double says of itself.
func (r *rig) text(key string) string {
	r.t.Helper()
	const at, bytes = 3 << 20, 4096
	answers, err := r.Get(r.t.Context(), object(key, at, bytes))
	if err != nil || answers[0] < 0 {
		r.t.Fatalf("%s: %v, %v", key, answers, err)
	}
	return string(r.memory[at:][:answers[0]])
}

// counts returns one of the double's counters.
func (r *rig) counts(name string) (n int) {
	r.t.Helper()
	for field := range strings.FieldsSeq(r.text("double@stats")) {
		if value, found := strings.CutPrefix(field, name+"="); found {
			if _, err := fmt.Sscan(value, &n); err != nil {
				r.t.Fatal(err)
			}
			return n
		}
	}
	r.t.Fatalf("the double does not count %s", name)
	return 0
}

// flag is a file that makes the double do something while it is there.
type flag struct {
	t    testing.TB
	path string
}

func newFlag(t testing.TB) flag {
	f := flag{t, filepath.Join(t.TempDir(), "flag")}
	t.Cleanup(func() { _ = os.Remove(f.path) }) // or what hangs would do so for ever
	return f
}

func (f flag) raise() {
	f.t.Helper()
	if err := os.WriteFile(f.path, nil, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f flag) lower() {
	f.t.Helper()
	if err := os.Remove(f.path); err != nil {
		f.t.Fatal(err)
	}
}
