package shm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// Populate brings the pages of the range and no others, and leaves what is
// written there.
func TestPopulate(t *testing.T) {
	const page = 4096
	s, err := NewSegment("test", 64*page)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Bytes()[5*page] = 7
	if err := s.Populate(4*page+1, 2*page); errors.Is(err, unix.EINVAL) {
		t.Skip("the kernel has no MADV_POPULATE_WRITE")
	} else if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(s.FD(), &stat); err != nil {
		t.Fatal(err)
	}
	if got := stat.Blocks * 512; got != 3*page {
		t.Errorf("%d bytes are there, want %d", got, 3*page)
	}
	if s.Bytes()[5*page] != 7 {
		t.Error("what was written is gone")
	}
	for _, c := range [][2]uint64{{65 * page, 1}, {63 * page, 2 * page}, {page, ^uint64(0)}} {
		if err := s.Populate(c[0], c[1]); !errors.Is(err, ErrWrongSize) {
			t.Errorf("populate %v: %v", c, err)
		}
	}
}
