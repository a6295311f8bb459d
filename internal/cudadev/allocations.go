package cudadev

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/cuda"
)

// allocations are what of engines' memory is mapped, each once.
type allocations struct {
	gpu  *gpu
	mu   sync.Mutex
	open map[any]*allocation // by handle, or by the identity of the chunks' files; guarded by mu
}

// allocation is mapped as long as a mapping uses it.
type allocation struct {
	name   any
	at     cuda.Address
	bytes  uint64
	chunks []uint64 // their lengths; nil for one by handle
	users  int      // guarded by allocations.mu
}

// hold maps a region's allocation, or finds it mapped.
func (a *allocations) hold(r *connector.KVRegion, fds []int) (*allocation, error) {
	switch r.Kind {
	case KindIPC:
		if len(r.Handle) != cuda.HandleBytes {
			return nil, errors.New("it has no handle")
		}
		handle := cuda.Handle(r.Handle)
		return a.take(handle, func() (*allocation, error) { return a.openHandle(handle) })
	case KindVMM:
		if r.FD < 0 || len(r.Chunks) == 0 || r.FD > len(fds)-len(r.Chunks) {
			return nil, fmt.Errorf("%d chunks from descriptor %d of %d", len(r.Chunks), r.FD, len(fds))
		}
		mine := fds[r.FD : r.FD+len(r.Chunks)]
		name, total, err := identify(mine, r.Chunks)
		if err != nil {
			return nil, err
		}
		return a.take(name, func() (*allocation, error) { return a.openChunks(mine, r.Chunks, total) })
	}
	return nil, fmt.Errorf("kind %.32q is not known; known kinds: %s, %s", r.Kind, KindIPC, KindVMM)
}

func (a *allocations) take(name any, open func() (*allocation, error)) (*allocation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.open[name]; found != nil {
		found.users++
		return found, nil
	}
	opened, err := open()
	if err != nil {
		return nil, a.gpu.note(err)
	}
	if a.open == nil {
		a.open = map[any]*allocation{}
	}
	opened.name, opened.users = name, 1
	a.open[name] = opened
	return opened, nil
}

func (a *allocations) openHandle(handle cuda.Handle) (*allocation, error) {
	at, err := a.gpu.OpenMemory(handle)
	if err != nil {
		return nil, err
	}
	base, bytes, err := a.gpu.Range(at)
	if err == nil && base != at {
		err = errors.New("the driver mapped the middle of an allocation")
	}
	if err != nil {
		return nil, errors.Join(err, a.gpu.CloseMemory(at))
	}
	return &allocation{at: at, bytes: bytes}, nil
}

// maxChunked bounds the address space that a registration may ask for: more than
// any GPU has.
const maxChunked = 1 << 42

// identify tells chunks from others by their files: descriptors differ from
// session to session.
func identify(fds []int, bytes []uint64) (name string, total uint64, err error) {
	for i, fd := range fds {
		var stat unix.Stat_t
		if fd < 0 {
			return "", 0, fmt.Errorf("chunk %d has no descriptor", i)
		}
		if err := unix.Fstat(fd, &stat); err != nil {
			return "", 0, fmt.Errorf("chunk %d: %w", i, err)
		}
		if bytes[i] == 0 || bytes[i] > maxChunked || total+bytes[i] > maxChunked {
			return "", 0, fmt.Errorf("chunk %d of %d bytes behind %d", i, bytes[i], total)
		}
		total += bytes[i]
		name += fmt.Sprintf("%d:%d:%d ", stat.Dev, stat.Ino, bytes[i])
	}
	return name, total, nil
}

func (a *allocations) openChunks(fds []int, bytes []uint64, total uint64) (*allocation, error) {
	at, err := a.gpu.MapChunks(fds, bytes)
	if err != nil {
		return nil, err
	}
	return &allocation{at: at, bytes: total, chunks: bytes}, nil
}

// drop ends a use; the last unmaps.
//
// REQUIRES: no copy of the user is under way.
func (a *allocations) drop(gone *allocation) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if gone.users--; gone.users > 0 {
		return nil
	}
	delete(a.open, gone.name)
	if gone.chunks != nil {
		return a.gpu.UnmapChunks(gone.at, gone.chunks)
	}
	return a.gpu.CloseMemory(gone.at)
}
