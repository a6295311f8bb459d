package hostdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/copying"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const numBlocks = 6

// layout is a registration with the bytes of its regions as the engine sees
// them.
type layout struct {
	reg     *connector.Register
	regions [][]byte
	fds     []int
}

// newLayout makes regions and registers segments in them. Kinds are by region;
// a process_vm region is memory of this very process.
func newLayout(t *testing.T, kinds []string, regionBytes int, shardBytes []int, segments []connector.KVSegment) *layout {
	t.Helper()
	l := &layout{reg: &connector.Register{NumBlocks: numBlocks, Segments: segments}}
	for _, n := range shardBytes {
		l.reg.Namespace.Groups = append(l.reg.Namespace.Groups, kv.GroupSpec{ShardBytes: n})
	}
	for i, kind := range kinds {
		region := connector.KVRegion{Kind: kind, FD: len(l.fds), Bytes: uint64(regionBytes)}
		fd, err := shm.Create(context.Background(), fmt.Sprint("region", i), int64(regionBytes))
		if err != nil {
			t.Fatal(err)
		}
		mapped, err := shm.Map(fd, uint64(regionBytes))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mapped.Close() })
		if kind == KindMemfd {
			l.fds = append(l.fds, fd)
		} else {
			unix.Close(fd)
			region.Address = uint64(addressOf(mapped.Data()))
		}
		l.reg.Regions = append(l.reg.Regions, region)
		l.regions = append(l.regions, mapped.Data())
		random := rand.NewChaCha8([32]byte{byte(i)})
		random.Read(mapped.Data())
	}
	return l
}

func (l *layout) open(t *testing.T) worker.Mapping {
	t.Helper()
	m, err := Device{}.Map(os.Getpid(), l.reg, l.fds)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// shard is the naive reading of a block's shard.
func (l *layout) shard(group int, block uint32) []byte {
	var out []byte
	for _, s := range l.reg.Segments {
		if s.Group == group {
			out = append(out, l.regions[s.Region][s.Offset+uint64(block)*s.BlockStride:][:s.Bytes]...)
		}
	}
	return out
}

func run(t *testing.T, m worker.Mapping, d worker.Direction, batch []worker.ShardCopy) error {
	t.Helper()
	done := make(chan error, 1)
	m.Copy(context.Background(), d, nil, batch, func(err error) { done <- err })
	return <-done
}

func seg(group, region int, offset, stride, n uint64) connector.KVSegment {
	return connector.KVSegment{Group: group, Region: region, Offset: offset, BlockStride: stride, Bytes: n}
}

func TestCopiesAreExact(t *testing.T) {
	const big = pieceBytes + 4096 + 3 // more than one piece, no round number
	for name, c := range map[string]struct {
		kinds    []string
		bytes    int
		shards   []int
		segments []connector.KVSegment
	}{
		"LBHNC, a segment a layer": {[]string{KindMemfd}, 3 * numBlocks * 1024, []int{3 * 1024},
			[]connector.KVSegment{seg(0, 0, 0, 1024, 1024), seg(0, 0, numBlocks*1024, 1024, 1024), seg(0, 0, 2*numBlocks*1024, 1024, 1024)}},
		"LHBNC, a segment a head": {[]string{KindMemfd}, 2 * 2 * numBlocks * 512, []int{4 * 512},
			[]connector.KVSegment{seg(0, 0, 0, 512, 512), seg(0, 0, numBlocks*512, 512, 512), seg(0, 0, 2*numBlocks*512, 512, 512), seg(0, 0, 3*numBlocks*512, 512, 512)}},
		"BLHNC, one segment": {[]string{KindMemfd}, numBlocks * 4096, []int{4096}, []connector.KVSegment{seg(0, 0, 0, 4096, 4096)}},
		"pieces out of order": {[]string{KindMemfd}, numBlocks * 4096, []int{300},
			[]connector.KVSegment{seg(0, 0, 2048, 4096, 100), seg(0, 0, 7, 4096, 200)}},
		"two regions, two groups over one another": {[]string{KindMemfd, KindMemfd}, numBlocks * 2048, []int{2048, 1024},
			[]connector.KVSegment{seg(0, 0, 0, 2048, 1024), seg(0, 1, 0, 2048, 1024), seg(1, 0, 0, 2048, 1024)}},
		"large odd blocks":    {[]string{KindMemfd}, numBlocks * big, []int{big}, []connector.KVSegment{seg(0, 0, 0, big, big)}},
		"private memory":      {[]string{KindProcessVM}, numBlocks * 4096, []int{300}, []connector.KVSegment{seg(0, 0, 2048, 4096, 100), seg(0, 0, 7, 4096, 200)}},
		"large private":       {[]string{KindProcessVM}, numBlocks * big, []int{big}, []connector.KVSegment{seg(0, 0, 0, big, big)}},
		"shared and private":  {[]string{KindMemfd, KindProcessVM}, numBlocks * 2048, []int{4096}, []connector.KVSegment{seg(0, 0, 0, 2048, 1024), seg(0, 1, 0, 2048, 2048), seg(0, 0, 1024, 2048, 1024)}},
		"more than one call":  {[]string{KindProcessVM}, numBlocks * 4 * (maxPieces + 5), []int{2 * (maxPieces + 5)}, manySegments(maxPieces + 5)},
		"shared, many pieces": {[]string{KindMemfd}, numBlocks * 4 * (maxPieces + 5), []int{2 * (maxPieces + 5)}, manySegments(maxPieces + 5)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLayout(t, c.kinds, c.bytes, c.shards, c.segments)
			m := l.open(t)
			before := make([][]byte, len(l.regions))
			for i := range before {
				before[i] = bytes.Clone(l.regions[i])
			}
			for g, n := range c.shards {
				stored := []worker.ShardCopy{{Group: g, BlockID: 1, Memory: make([]byte, n)}, {Group: g, BlockID: numBlocks - 1, Memory: make([]byte, n)}}
				if err := run(t, m, worker.Store, stored); err != nil {
					t.Fatal(err)
				}
				for _, s := range stored {
					if !bytes.Equal(s.Memory, l.shard(g, s.BlockID)) || s.Checksum != sum(s.Memory) {
						t.Fatalf("group %d block %d: stored bytes or checksum differ", g, s.BlockID)
					}
				}
				// Load block 1's bytes into block 3 and nothing else.
				loaded := []worker.ShardCopy{{Group: g, BlockID: 3, Memory: stored[0].Memory}}
				if err := run(t, m, worker.Load, loaded); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(l.shard(g, 3), stored[0].Memory) || loaded[0].Checksum != stored[0].Checksum {
					t.Fatalf("group %d: loaded bytes or checksum differ", g)
				}
				for _, s := range c.segments {
					if s.Group == g {
						at := s.Offset + 3*s.BlockStride
						copy(l.regions[s.Region][at:at+s.Bytes], before[s.Region][at:])
					}
				}
				for i := range before {
					if !bytes.Equal(before[i], l.regions[i]) {
						t.Fatalf("group %d: bytes of region %d outside the block changed", g, i)
					}
				}
			}
		})
	}
}

func manySegments(n uint64) []connector.KVSegment {
	var out []connector.KVSegment
	for i := range n {
		out = append(out, seg(0, 0, 4*i, 4*n, 2))
	}
	return out
}

func sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func TestMapRefuses(t *testing.T) {
	good := func() *layout {
		return newLayout(t, []string{KindMemfd}, numBlocks*4096, []int{4096}, []connector.KVSegment{seg(0, 0, 0, 4096, 4096)})
	}
	unsealed, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(unsealed, numBlocks*4096); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*layout)
		want   error
	}{
		"longer than the file":      {func(l *layout) { l.reg.Regions[0].Bytes++ }, shm.ErrWrongSize},
		"segment beyond the region": {func(l *layout) { l.reg.NumBlocks++ }, ErrRegion},
		"blocks that overlap":       {func(l *layout) { l.reg.Segments[0].BlockStride = 100 }, ErrRegion},
		"descriptor out of range":   {func(l *layout) { l.reg.Regions[0].FD = 1 }, ErrRegion},
		"another's descriptor":      {func(l *layout) { unix.Close(l.fds[0]); l.fds[0] = -1 }, ErrRegion},
		"unsealed file":             {func(l *layout) { unix.Close(l.fds[0]); l.fds[0] = unsealed }, shm.ErrNotSealed},
		"unknown kind":              {func(l *layout) { l.reg.Regions[0].Kind = "cuda_ipc" }, ErrRegion},
		"private memory that is not there": {func(l *layout) {
			l.reg.Regions[0] = connector.KVRegion{Kind: KindProcessVM, Address: 4096, Bytes: numBlocks * 4096}
		}, unix.EFAULT},
		"private memory beyond the address space": {func(l *layout) {
			l.reg.Regions[0] = connector.KVRegion{Kind: KindProcessVM, Address: ^uint64(0) - 10, Bytes: numBlocks * 4096}
		}, ErrRegion},
	} {
		l := good()
		c.change(l)
		fds := append([]int(nil), l.fds...)
		if m, err := (Device{}).Map(os.Getpid(), l.reg, l.fds); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, %v, want %v", name, m, err, c.want)
		}
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); fd >= 0 && !errors.Is(err, unix.EBADF) {
				t.Errorf("%s: descriptor %d is left open", name, fd)
			}
		}
	}
}

func TestDeadProcessIsNotRead(t *testing.T) {
	l := newLayout(t, []string{KindProcessVM}, numBlocks*64, []int{64}, []connector.KVSegment{seg(0, 0, 0, 64, 64)})
	if _, err := (Device{}).Map(1<<22+1, l.reg, nil); err == nil {
		t.Error("a process that does not exist was mapped")
	}
}

func TestCopyStopsWithItsContext(t *testing.T) {
	l := newLayout(t, []string{KindMemfd}, numBlocks*64, []int{64}, []connector.KVSegment{seg(0, 0, 0, 64, 64)})
	m := l.open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	memory := make([]byte, 64)
	done := make(chan error, 1)
	m.Copy(ctx, worker.Store, nil, []worker.ShardCopy{{BlockID: 1, Memory: memory}}, func(err error) { done <- err })
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if !bytes.Equal(memory, make([]byte, 64)) {
		t.Error("bytes were copied")
	}
}

func TestCopyAfterClose(t *testing.T) {
	l := newLayout(t, []string{KindMemfd}, numBlocks*64, []int{64}, []connector.KVSegment{seg(0, 0, 0, 64, 64)})
	m := l.open(t)
	m.Close()
	if err := run(t, m, worker.Store, []worker.ShardCopy{{BlockID: 1, Memory: make([]byte, 64)}}); err == nil {
		t.Error("no error")
	}
}

// held is a context that holds a copy up where it looks whether to go on.
type held struct {
	context.Context
	release chan struct{}
}

func (h held) Err() error {
	<-h.release
	return nil
}

func TestCloseWaitsForCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLayout(t, []string{KindMemfd}, numBlocks*64, []int{64}, []connector.KVSegment{seg(0, 0, 0, 64, 64)})
		m := l.open(t)
		ctx := held{t.Context(), make(chan struct{})}
		done := make(chan error, 1)
		m.Copy(ctx, worker.Store, nil, []worker.ShardCopy{{BlockID: 1, Memory: make([]byte, 64)}}, func(err error) { done <- err })
		var closed atomic.Bool
		go func() {
			m.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("the memory was unmapped under a copy")
		}
		close(ctx.release)
		synctest.Wait()
		if err := <-done; err != nil || !closed.Load() {
			t.Errorf("%v, closed %v", err, closed.Load())
		}
	})
}

// A second Close closes no descriptor: the numbers may be another's by then.
func TestCloseTwice(t *testing.T) {
	l := newLayout(t, []string{KindProcessVM}, numBlocks*64, []int{64}, []connector.KVSegment{seg(0, 0, 0, 64, 64)})
	m := l.open(t)
	pidfd := m.(*mapping).remote.pidfd //nolint:forcetypeassert // it is what Map makes
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup2(int(os.Stderr.Fd()), pidfd); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(pidfd), unix.F_GETFD, 0); err != nil {
		t.Errorf("another's descriptor was closed: %v", err)
	}
}

// A page that can't be had is an error of the batch, and the process lives.
func TestFaultIsAnError(t *testing.T) {
	fd, err := unix.MemfdCreate("shrinks", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 8192); err != nil {
		t.Fatal(err)
	}
	data, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	r := &region{mapped: &shm.Mapping{}, data: data}
	m := &mapping{copier: newCopier(), held: 1, shards: [][]segment{{{region: r, stride: 4096, bytes: 4096}}}}
	for _, d := range []worker.Direction{worker.Store, worker.Load} {
		if err := run(t, m, d, []worker.ShardCopy{{BlockID: 1, Memory: make([]byte, 4096)}}); !errors.Is(err, copying.ErrFault) {
			t.Errorf("direction %d: got %v, want ErrFault", d, err)
		}
	}
}

// Stores are done as work in the background, by one thread of it, and loads are not:
// a request waits for a load.
func TestStoresAreBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLayout(t, []string{KindMemfd}, numBlocks*64, []int{64}, []connector.KVSegment{seg(0, 0, 0, 64, 64)})
		release := make(chan struct{})
		m, err := Device{Background: func(work func()) {
			<-release
			work()
		}}.Map(os.Getpid(), l.reg, l.fds)
		if err != nil {
			t.Fatal(err)
		}
		var stored, loaded atomic.Int64
		const stores = 4
		for range stores {
			m.Copy(t.Context(), worker.Store, nil, []worker.ShardCopy{{BlockID: 1, Memory: make([]byte, 64)}}, func(error) { stored.Add(1) })
		}
		m.Copy(t.Context(), worker.Load, nil, []worker.ShardCopy{{BlockID: 2, Memory: make([]byte, 64)}}, func(error) { loaded.Add(1) })
		synctest.Wait()
		if stored.Load() != 0 || loaded.Load() != 1 {
			t.Errorf("while there is no time for what nobody waits for, %d stores and %d loads of 1 are done", stored.Load(), loaded.Load())
		}
		close(release)
		synctest.Wait()
		if stored.Load() != stores {
			t.Errorf("%d stores are done, of %d", stored.Load(), stores)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}
