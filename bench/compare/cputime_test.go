package compare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSessionTime(t *testing.T) {
	proc := t.TempDir()
	for pid, line := range map[string]string{
		"10": "10 (a) b) c) S 1 10 10 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 8",
		"11": "11 (child) S 10 10 10 0 -1 4194560 1 2 3 4 7 0 0 0 20 0 1",
		"12": "12 (other) S 1 12 12 0 -1 4194560 1 2 3 4 9999 0 0 0 20 0 1",
	} {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "stat"), []byte(line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// A process that ended between the listing and the look, and what is no process.
	for _, name := range []string{"13", "self"} {
		if err := os.Mkdir(filepath.Join(proc, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	used, err := sessionTime(proc, []int{10, 77})
	if want := 1310 * time.Millisecond; err != nil || used != want {
		t.Errorf("used %s, %v; not %s", used, err, want)
	}
	if err := os.WriteFile(filepath.Join(proc, "12", "stat"), []byte("12 (x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sessionTime(proc, []int{10}); err == nil || !strings.Contains(err.Error(), "process 12") {
		t.Errorf("a malformed line: error %v", err)
	}
}

func TestParseBusy(t *testing.T) {
	busy, err := parseBusy([]byte("cpu  100 10 20 5000 300 3 2 9 0 0\ncpu0 1 1 1 1 1 1 1\n"))
	if want := 1350 * time.Millisecond; err != nil || busy != want {
		t.Errorf("busy %s, %v; not %s", busy, err, want)
	}
	for _, line := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7", "cpu a b c d e f g"} {
		if _, err := parseBusy([]byte(line)); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

// What /proc of this machine says must be understood.
func TestProc(t *testing.T) {
	if _, err := sessionTime("/proc", []int{os.Getpid()}); err != nil {
		t.Error(err)
	}
	if busy, err := Busy(); err != nil || busy <= 0 {
		t.Errorf("busy %s, %v", busy, err)
	}
	if m := ThisMachine(); m.CPUs < 1 || m.MemoryGiB < 1 {
		t.Errorf("the machine is %+v", m)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("10 (a) b) c) S 1 10 10 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 8"))
	f.Fuzz(func(_ *testing.T, line []byte) { _, _, _ = parseStat(line) })
}
