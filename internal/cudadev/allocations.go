package cudadev

import (
	"errors"
	"fmt"
	"sync"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/cuda"
)

// allocations are what of engines' memory is mapped: what has a handle once, as the
// driver demands it. Chunks are mapped for each region: nothing tells one
// descriptor's memory from another's, all of the driver's are of one file.
type allocations struct {
	gpu  *gpu
	mu   sync.Mutex
	open map[cuda.Handle]*allocation // guarded by mu
}

// allocation is mapped as long as a mapping uses it.
type allocation struct {
	handle cuda.Handle // of one by handle
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
		return a.take(cuda.Handle(r.Handle))
	case KindVMM:
		if r.FD < 0 || len(r.Chunks) == 0 || r.FD > len(fds)-len(r.Chunks) {
			return nil, fmt.Errorf("%d chunks from descriptor %d of %d", len(r.Chunks), r.FD, len(fds))
		}
		mine := fds[r.FD : r.FD+len(r.Chunks)]
		for i, fd := range mine {
			if fd < 0 {
				return nil, fmt.Errorf("chunk %d has no descriptor", i)
			}
		}
		return a.openChunks(r.Chunks, func() (cuda.Address, error) { return a.gpu.MapChunks(mine, r.Chunks) })
	case KindFabric:
		if len(r.Chunks) == 0 || len(r.Handle) != len(r.Chunks)*cuda.HandleBytes {
			return nil, fmt.Errorf("%d chunks with %d bytes of handles", len(r.Chunks), len(r.Handle))
		}
		return a.openChunks(r.Chunks, func() (cuda.Address, error) { return a.gpu.MapFabric(r.Handle, r.Chunks) })
	}
	return nil, fmt.Errorf("kind %.32q is not known; known kinds: %s, %s, %s", r.Kind, KindIPC, KindVMM, KindFabric)
}

func (a *allocations) take(handle cuda.Handle) (*allocation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.open[handle]; found != nil {
		found.users++
		return found, nil
	}
	opened, err := a.openHandle(handle)
	if err != nil {
		return nil, a.gpu.note(err)
	}
	if a.open == nil {
		a.open = map[cuda.Handle]*allocation{}
	}
	a.open[handle] = opened
	a.gpu.stats.mapped.Add(int64(opened.bytes))
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
	return &allocation{handle: handle, at: at, bytes: bytes, users: 1}, nil
}

// maxChunked bounds the address space that a registration may ask for: more than
// any GPU has.
const maxChunked = 1 << 42

// openChunks maps chunks, one behind the other, for one user.
func (a *allocations) openChunks(bytes []uint64, open func() (cuda.Address, error)) (*allocation, error) {
	total := uint64(0)
	for i, n := range bytes {
		if n == 0 || n > maxChunked || total+n > maxChunked {
			return nil, fmt.Errorf("chunk %d of %d bytes behind %d", i, n, total)
		}
		total += n
	}
	at, err := open()
	if err != nil {
		return nil, a.gpu.note(err)
	}
	a.gpu.stats.mapped.Add(int64(total))
	return &allocation{at: at, bytes: total, chunks: bytes, users: 1}, nil
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
	a.gpu.stats.mapped.Add(-int64(gone.bytes))
	if gone.chunks != nil {
		return a.gpu.UnmapChunks(gone.at, gone.chunks)
	}
	delete(a.open, gone.handle)
	return a.gpu.CloseMemory(gone.at)
}
