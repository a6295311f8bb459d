package shm

import (
	"testing"
	"unsafe"

	"github.com/mooncake-sidecar/sidecar/internal/hugepage"
)

func TestMappingsAreAligned(t *testing.T) {
	for _, bytes := range []uint64{4096, hugepage.Bytes - 1, hugepage.Bytes, hugepage.Bytes + 1, 5*hugepage.Bytes - 4096} {
		for range 3 { // where the kernel puts the next one is not aligned
			s, err := NewSegment("aligned", bytes)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Prepare(0, bytes); err != nil {
				t.Fatal(err)
			}
			data := s.Bytes()
			if uint64(len(data)) != bytes {
				t.Fatalf("%d bytes are mapped, want %d", len(data), bytes)
			}
			if at := uintptr(unsafe.Pointer(&data[0])); bytes >= hugepage.Bytes && at%hugepage.Bytes != 0 {
				t.Errorf("%d bytes are mapped at %#x", bytes, at)
			}
			data[0], data[bytes-1] = 1, 2
			if err := s.Collapse(0, bytes); err != nil {
				t.Logf("no huge pages here: %v", err)
			}
			if data[bytes-1] != 2 || data[0] == 0 {
				t.Error("what was written has gone")
			}
		}
	}
}
