package shm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBind binds a part of a segment to node 0, which every machine has, and sees
// that another mapping of the file has the policy too: workers bring pages in.
func TestBind(t *testing.T) {
	const page = 4096
	s, err := NewSegment("test", 64*page)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Bind(16*page, 16*page, 0); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("not allowed here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(s.FD())
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenSegment(fd, 64*page)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, seg := range []*Segment{s, other} {
		for offset, want := range map[uint64]bool{0: false, 16 * page: true, 31 * page: true, 32 * page: false} {
			if node, bound, err := seg.preferredNode(offset); err != nil || bound != want || node != 0 {
				t.Errorf("page %d: node %d, bound %v, %v", offset/page, node, bound, err)
			}
		}
	}
	if err := s.Prepare(16*page, page); err != nil {
		t.Fatal(err)
	}
	if node, err := other.nodeAt(16 * page); err != nil || node != 0 {
		t.Errorf("the page is on node %d, %v", node, err)
	}
}

func TestBindRefuses(t *testing.T) {
	const page = 4096
	s, err := NewSegment("test", 8*page)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range [][2]uint64{{9 * page, page}, {7 * page, 2 * page}, {0, 0}, {1, page}, {page, ^uint64(0)}} {
		if err := s.Bind(c[0], c[1], 0); !errors.Is(err, ErrWrongSize) {
			t.Errorf("bind %v: %v", c, err)
		}
	}
	for _, node := range []int{-1, maxNode + 1} {
		if err := s.Bind(0, page, node); !errors.Is(err, unix.EINVAL) {
			t.Errorf("node %d: %v", node, err)
		}
	}
	// The last node that the kernel could know, and no machine of ours has.
	if err := s.Bind(0, page, maxNode); err == nil {
		t.Error("a node that is not there was taken")
	}
}
