package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// table is a folder like /proc: 10 leads a session, 11 is its child, 14 the child's;
// 12 is another. 13 ended between the listing and the look; self is no process.
func table(t *testing.T) string {
	proc := t.TempDir()
	for pid, line := range map[string]string{
		"10": "10 (a) b) c) S 1 10 10 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 8",
		"11": "11 (child) S 10 10 10 0 -1 4194560 1 2 3 4 7 0 0 0 20 0 1",
		"12": "12 (other) S 1 12 12 0 -1 4194560 1 2 3 4 9999 0 0 0 20 0 1",
		"14": "14 (grandchild) Z 11 14 14 0 -1 4194560 1 2 3 4 3 0 0 0 20 0 1",
	} {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "stat"), []byte(line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"13", "self"} {
		if err := os.Mkdir(filepath.Join(proc, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return proc
}

func TestProcesses(t *testing.T) {
	proc := table(t)
	all, err := Processes(proc)
	if err != nil || len(all) != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	if used, want := Used(InSessions(all, []int{10, 77})), 1310*time.Millisecond; used != want {
		t.Errorf("the sessions used %s, not %s", used, want)
	}
	below := Below(all, 10)
	if used, want := Used(below), 100*time.Millisecond; len(below) != 2 || used != want || below[0].Ended || !below[1].Ended {
		t.Errorf("below 10 are %+v", below)
	}
	if err := os.WriteFile(filepath.Join(proc, "12", "stat"), []byte("12 (x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Processes(proc); err == nil || !strings.Contains(err.Error(), "process 12") {
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
func TestThis(t *testing.T) {
	all, err := Processes("/proc")
	if err != nil || len(all) == 0 {
		t.Errorf("%d processes, %v", len(all), err)
	}
	if busy, err := Busy(); err != nil || busy <= 0 {
		t.Errorf("busy %s, %v", busy, err)
	}
	if f := This(); f.CPUs < 1 || f.MemoryGiB < 1 || f.Kernel == unknown || f.Load == unknown {
		t.Errorf("the machine is %+v", f)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("10 (a) b) c) S 1 10 10 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 8"))
	f.Fuzz(func(_ *testing.T, line []byte) { _, _ = parseStat(line) })
}
