package hugepage

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestWholePages(t *testing.T) {
	memory := make([]byte, 4*Bytes)
	start := int(-uintptr(unsafe.Pointer(&memory[0])) % Bytes)
	for _, c := range []struct {
		from, to    int
		first, last int // of the whole pages
	}{
		{0, 0, 0, 0},
		{start, start + Bytes - 1, 0, 0},
		{start + 1, start + 2*Bytes - 1, 0, 0},
		{start, start + Bytes, start, start + Bytes},
		{start + 1, start + 2*Bytes, start + Bytes, start + 2*Bytes},
		{start, start + 2*Bytes + 1, start, start + 2*Bytes},
	} {
		whole := wholePages(memory[c.from:c.to])
		if len(whole) != c.last-c.first {
			t.Fatalf("[%d, %d) has %d bytes of whole pages, want %d", c.from-start, c.to-start, len(whole), c.last-c.first)
		}
		if len(whole) > 0 && &whole[0] != &memory[c.first] {
			t.Fatalf("the whole pages of [%d, %d) begin elsewhere", c.from-start, c.to-start)
		}
	}
}

// Contents stay, and the kernel says that the pages are large, where it knows of that.
func TestCollapse(t *testing.T) {
	memory := make([]uint64, 4*Bytes/8)
	for i := range memory {
		memory[i] = uint64(i)
	}
	whole := wholePages(memory)
	err := Collapse(memory)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY):
		t.Logf("no huge pages here: %v", err)
	case err != nil:
		t.Fatal(err)
	default:
		if n := largeBytes(t, &whole[0]); n < len(whole) {
			t.Errorf("%d bytes are on huge pages, want %d at least", n, len(whole))
		}
	}
	for i, v := range memory {
		if v != uint64(i) {
			t.Fatalf("word %d is %d", i, v)
		}
	}
}

// largeBytes returns how much of the mapping in which b lies is on huge pages.
func largeBytes(t *testing.T, b *byte) int {
	t.Helper()
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	defer file.Close()
	at, inside := uintptr(unsafe.Pointer(b)), false
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
			continue
		}
		var kib int
		if value, ok := strings.CutPrefix(lines.Text(), "AnonHugePages:"); ok && inside {
			if _, err := fmt.Sscan(value, &kib); err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("the mapping is not listed")
	return 0
}
