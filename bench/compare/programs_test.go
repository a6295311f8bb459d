package compare

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAddExtents(t *testing.T) {
	mapped := map[string][]extent{}
	maps := `5600-7600 r--p 00000000 fe:00 11 /usr/bin/a
7600-9600 r-xp 00002000 fe:00 11 /usr/bin/a
9600-a600 rw-p 00000000 00:00 0 [heap]
a600-b600 rw-s 00000000 00:01 12 /memfd:kv (deleted)
b600-c600 r--p 00000000 00:01 13 /usr/lib/gone.so (deleted)
c600-d600 rw-p 00000000 00:05 14 /dev/zero
d600-e600 rw-p 00003000 fe:00 15 /usr/lib/a b.so
e600-f600 rw-p 00000000 00:00 0
`
	if err := addExtents(mapped, []byte(maps)); err != nil {
		t.Fatal(err)
	}
	want := map[string][]extent{"/usr/bin/a": {{0, 0x2000}, {0x2000, 0x4000}}, "/usr/lib/a b.so": {{0x3000, 0x4000}}}
	if fmt.Sprint(mapped) != fmt.Sprint(want) {
		t.Errorf("mapped %v, not %v", mapped, want)
	}
	if err := addExtents(mapped, []byte("5600-xyz r--p 0 fe:00 11 /usr/bin/a")); err == nil || !strings.Contains(err.Error(), "malformed mapping") {
		t.Errorf("a malformed line: %v", err)
	}
}

func TestMerge(t *testing.T) {
	got := merge([]extent{{50, 60}, {0, 10}, {10, 20}, {15, 17}, {55, 70}})
	if want := []extent{{0, 20}, {50, 70}}; !slices.Equal(got, want) {
		t.Errorf("merged to %v, not %v", got, want)
	}
}

// lockedBytes is what this process has locked into memory, by the kernel's account.
func lockedBytes(t *testing.T) (kib int64) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmLck: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("the kernel says nothing of locked memory")
	return 0
}

func TestHoldPrograms(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, make([]byte, 40_000), 0o755); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	dir := filepath.Join(proc, "10")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"stat": "10 (a) S 1 10 10 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 8\n",
		// The end of the last mapping is beyond the file's.
		"maps": "0-1000 r--p 0 fe:00 11 " + program + "\n1000-9000 r-xp 2000 fe:00 11 " + program + "\n0-1000 r--p 0 fe:00 11 /no/such/file\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := lockedBytes(t)
	held, n, err := holdPrograms(proc, []int{10})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(0x1000 + 40_000 - 0x2000); n != want {
		t.Errorf("%d bytes held, not %d", n, want)
	}
	if got := lockedBytes(t) - before; got < n {
		t.Errorf("the kernel has locked %d bytes, not %d", got, n)
	}
	held.Close()
	if got := lockedBytes(t); got != before {
		t.Errorf("%d bytes are locked after all was let go, %d before", got, before)
	}
}
