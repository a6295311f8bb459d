package cudatest

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
)

// The kinds in a handle, as in double.c.
const (
	kindMemory = 1
	kindEvent  = 2
	kindChunk  = 3
)

// newHandle names a memory file of this process as the double does.
func newHandle(kind, fd int, bytes uint64) (h cuda.Handle) {
	copy(h[:8], "cudadbl")
	binary.NativeEndian.PutUint32(h[8:], uint32(kind))
	binary.NativeEndian.PutUint32(h[12:], uint32(os.Getpid()))
	binary.NativeEndian.PutUint32(h[16:], uint32(fd))
	binary.NativeEndian.PutUint64(h[24:], bytes)
	return h
}

func mapped(t testing.TB, name string, bytes uint64) (fd int, data []byte) {
	t.Helper()
	fd = memfd(t, name, bytes)
	mapping, err := shm.Map(fd, bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mapping.Close(); err != nil {
			t.Error(err)
		}
	})
	return fd, mapping.Data()
}

// NewMemory allocates what an engine would on a GPU.
func NewMemory(t testing.TB, bytes uint64) (data []byte, handle cuda.Handle) {
	t.Helper()
	fd, data := mapped(t, "engine-memory", bytes)
	return data, newHandle(kindMemory, fd, bytes)
}

// NewChunk allocates what an engine would as a chunk of mapped memory. The
// descriptor is the test's.
func NewChunk(t testing.TB, bytes uint64) (data []byte, fd int) {
	t.Helper()
	chunks, fds := NewChunks(t, bytes)
	return chunks[0], fds[0]
}

// NewChunks allocates chunks, of whole pages each. Their descriptors are of one file,
// as all are that the driver makes.
func NewChunks(t testing.TB, bytes ...uint64) (chunks [][]byte, fds []int) {
	t.Helper()
	total := uint64(0)
	for _, n := range bytes {
		total += n
	}
	file, data := mapped(t, "engine-chunks", total)
	at := uint64(0)
	for _, n := range bytes {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", file), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if _, err := unix.Seek(fd, int64(at/pageBytes<<32|n), unix.SEEK_SET); err != nil {
			t.Fatal(err)
		}
		chunks, fds = append(chunks, data[at:at+n]), append(fds, fd)
		at += n
	}
	return chunks, fds
}

// NewFabric allocates what an engine would as a chunk that has a fabric handle.
func NewFabric(t testing.TB, bytes uint64) (data []byte, handle cuda.Handle) {
	t.Helper()
	fd, data := mapped(t, "engine-fabric", bytes)
	return data, newHandle(kindChunk, fd, bytes)
}

// Event is an event of an engine.
type Event struct {
	Handle cuda.Handle
	words  []atomic.Uint64
}

// NewEvent makes an event that was never recorded, which counts as done.
func NewEvent(t testing.TB) *Event {
	t.Helper()
	fd, data := mapped(t, "engine-event", pageBytes)
	return &Event{Handle: newHandle(kindEvent, fd, pageBytes), words: shm.Words(data)}
}

// Record sets the event behind the engine's work, which is not done yet.
func (e *Event) Record() { e.words[0].Add(1) }

// Complete ends that work.
func (e *Event) Complete() { e.words[1].Store(e.words[0].Load()) }
