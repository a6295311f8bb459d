package suite

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTestFamily(t *testing.T) *family {
	t.Helper()
	f, err := newFamily()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func commandOf(t *testing.T, f *family, script string) *command {
	dir := t.TempDir()
	return &command{
		args: []string{"sh", "-c", script}, dir: dir, output: filepath.Join(dir, "out"), log: filepath.Join(dir, "log"),
		limit: time.Minute, say: func(string) {}, family: f,
	}
}

func contents(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// running lists the processes that run with a word in their command line.
func running(t *testing.T, word string) []machine.Process {
	t.Helper()
	all, err := machine.Processes("/proc")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p machine.Process) bool {
		line, err := os.ReadFile(filepath.Join("/proc", itoa(p.PID), "cmdline"))
		return err != nil || p.Ended || !strings.Contains(string(line), word)
	})
}

func TestCommand(t *testing.T) {
	c := commandOf(t, newTestFamily(t), `echo result; echo "first words" >&2; printf '\rhalf\rwhole' >&2; echo "$WORD" >&2`)
	c.environment = []string{"WORD= of it"}
	var said []string
	c.say = func(line string) { said = append(said, line) }
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if contents(t, c.output) != "result\n" || !strings.Contains(contents(t, c.log), "first words\n") {
		t.Errorf("output %q, log %q", contents(t, c.output), contents(t, c.log))
	}
	if want := []string{"first words", "whole of it"}; !slices.Equal(said, want) {
		t.Errorf("said %q, not %q", said, want)
	}
}

// TestCommandFails: the error has the last words.
func TestCommandFails(t *testing.T) {
	f := newTestFamily(t)
	c := commandOf(t, f, `for i in $(seq 50); do echo "line $i" >&2; done; exit 3`)
	err := c.run(t.Context())
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.HasSuffix(err.Error(), "line 49\nline 50") || strings.Contains(err.Error(), "line 30\n") {
		t.Errorf("%v", err)
	}
	c = commandOf(t, f, "")
	c.args = []string{filepath.Join(t.TempDir(), "nothing")}
	if err := c.run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestCommandLeaves: what a command leaves behind is ended, in sessions of its own and
// deaf to SIGTERM, too.
func TestCommandLeaves(t *testing.T) {
	c := commandOf(t, newTestFamily(t), `setsid sleep 7654.321 & setsid sh -c 'trap "" TERM; while :; do sleep 0.01; done; : left-behind-7654' & sleep 0.2`)
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"7654.321", "left-behind-7654"} {
		if left := running(t, word); len(left) > 0 {
			t.Errorf("%s is left: %+v", word, left)
		}
	}
}

// TestCommandLimit: at the limit it can clean up, and ends with all that it started.
func TestCommandLimit(t *testing.T) {
	c := commandOf(t, newTestFamily(t), `trap 'echo cleaned; exit 0' INT; sleep 8765.432 & wait`)
	c.limit = 3 * time.Second // more than it takes to the trap
	if err := c.run(t.Context()); !errors.Is(err, ErrTime) {
		t.Errorf("%v", err)
	}
	if got := contents(t, c.output); got != "cleaned\n" {
		t.Errorf("it was not asked to end: %q", got)
	}
	if left := running(t, "8765.432"); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestCommandStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	c := commandOf(t, newTestFamily(t), `echo begun >&2; sleep 9876.543`)
	c.say = func(string) { stop() }
	if err := c.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if left := running(t, "9876.543"); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestReap: an orphan that ends is no corpse: a script that waits for its end by
// looking for its process is not kept waiting.
func TestReap(t *testing.T) {
	c := commandOf(t, newTestFamily(t), `(sleep 0.3 & echo $! >orphan); while kill -0 $(cat orphan) 2>/dev/null; do sleep 0.02; done; echo gone`)
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, c.output); got != "gone\n" {
		t.Errorf("%q", got)
	}
}

// TestWatch: a part's own work counts as its own, though its processes end and become
// orphans.
func TestWatch(t *testing.T) {
	f := newTestFamily(t)
	before, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	c := commandOf(t, f, `setsid sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done' & wait`)
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	if used := after.ours - before.ours; used < 5*machine.Tick {
		t.Errorf("the part used %v", used)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if l, err := f.watch(ctx); err != nil || l.AverageBegin == "" || l.AverageEnd == "" || l.OtherCores < 0 {
		t.Errorf("%+v, %v", l, err)
	}
}
