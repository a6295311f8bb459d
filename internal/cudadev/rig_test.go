package cudadev

import (
	"bytes"
	"context"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// uuid is the double's first GPU.
func uuid(device byte) []byte { return append(bytes.Repeat([]byte{0xd0}, 15), device) }

// rig is a device over a double, and the store's memory.
type rig struct {
	t        *testing.T
	double   *cudatest.Double
	device   *Device
	pool     *Pool
	memory   []byte
	prepared struct {
		sync.Mutex
		bytes uint64
		all   bool
	}
	log  syncBuffer
	lost chan error
}

// syncBuffer is a log that goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) has(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.b.String(), text)
}

const memoryBytes = 4 << 20

func newRig(t *testing.T, change func(*Config), defines ...string) *rig {
	t.Helper()
	r := &rig{t: t, double: cudatest.New(t, cudatest.Compile(t, defines...)), pool: NewPool(), lost: make(chan error, 1)}
	var err error
	if r.memory, err = unix.Mmap(-1, 0, memoryBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		t.Fatal(err)
	}
	r.pool.Add(r.memory, func() (uint64, bool) {
		r.prepared.Lock()
		defer r.prepared.Unlock()
		return r.prepared.bytes, r.prepared.all
	})
	cfg := Config{
		Library: r.double.Path, Way: ByKernel, LaunchBytes: 1 << 16, StepBytes: 1 << 20, OnLost: func(err error) { r.lost <- err },
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	r.device = New(cfg, r.pool)
	t.Cleanup(func() {
		r.double.Open()
		r.device.Close()
		r.pool.Remove(r.memory)
		if err := unix.Munmap(r.memory); err != nil {
			t.Error(err)
		}
	})
	return r
}

// prepare says that so much of the store's memory is there, and waits until as much
// is registered.
func (r *rig) prepare(bytes uint64, all bool, registered uint64) {
	r.t.Helper()
	r.prepared.Lock()
	r.prepared.bytes, r.prepared.all = bytes, all
	r.prepared.Unlock()
	r.double.Await(func() bool { return r.device.Stats().RegisteredBytes == int64(registered) })
}

// empty waits for the GPU to be given back, and for all of it to be.
func (r *rig) empty() {
	r.t.Helper()
	r.device.Close()
	r.double.Empty()
	if n := r.device.Stats().MappedBytes; n != 0 {
		r.t.Errorf("%d bytes are mapped by its own count", n)
	}
}

// layout is how a test's engine lays its KV cache out.
type layout struct {
	name   string
	blocks int
	held   int
	runs   []connector.KVSegment // of one group; Region counts
	bytes  []uint64              // of the regions
	chunks [][]uint64            // of regions that are chunks, their lengths
	fabric bool                  // they have fabric handles
}

// layouts are those of vLLM as the shim describes them, made small, and pieces of
// odd lengths.
func layouts() []layout {
	run := func(region int, offset, stride, bytes uint64, shard int) connector.KVSegment {
		return connector.KVSegment{Region: region, Offset: offset, BlockStride: stride, Bytes: bytes, Shard: shard}
	}
	layers := func(n int, blocks, bytes uint64) (runs []connector.KVSegment) {
		for i := range uint64(n) {
			runs = append(runs, run(0, i*blocks*bytes, bytes, bytes, 0))
		}
		return runs
	}
	tokens := func(n int, stride, bytes uint64) (runs []connector.KVSegment) { // two shards, a piece each token
		for shard := range 2 {
			for i := range uint64(n) {
				runs = append(runs, run(0, i*2*bytes+uint64(shard)*bytes, stride, bytes, shard))
			}
		}
		return runs
	}
	return []layout{
		{name: "a run each layer", blocks: 12, runs: layers(5, 12, 4096), bytes: []uint64{12 * 5 * 4096}},
		{name: "block outermost", blocks: 9, runs: []connector.KVSegment{run(0, 0, 40000, 40000, 0)}, bytes: []uint64{9 * 40000}},
		{name: "behind an offset, several allocations", blocks: 7, runs: []connector.KVSegment{run(0, 512, 1024, 1024, 0), run(1, 0, 3000, 3000, 0)}, bytes: []uint64{512 + 7*1024, 7 * 3000}},
		{name: "heads of shards", blocks: 6, held: 2, runs: tokens(16, 16*2*256, 256), bytes: []uint64{6 * 16 * 2 * 256}},
		{name: "656 bytes a token", blocks: 5, runs: layers(3, 5, 16*656), bytes: []uint64{5 * 3 * 16 * 656}},
		{name: "odd", blocks: 11, runs: []connector.KVSegment{run(0, 1, 333, 321, 0), run(0, 5000, 70001, 70001, 0)}, bytes: []uint64{5000 + 11*70001}},
		{name: "chunks", blocks: 12, runs: layers(4, 12, 4096), bytes: []uint64{12 * 4 * 4096}, chunks: [][]uint64{{1 << 16, 1 << 14, 1 << 17}}},
		{name: "chunks of one length", blocks: 16, runs: []connector.KVSegment{run(0, 0, 4096, 4096, 0), run(1, 0, 4096, 4096, 0)}, bytes: []uint64{1 << 16, 1 << 16}, chunks: [][]uint64{{1 << 15, 1 << 15}, {1 << 15, 1 << 15}}},
		{name: "fabric", blocks: 12, runs: layers(4, 12, 4096), bytes: []uint64{12 * 4 * 4096}, chunks: [][]uint64{{1 << 16, 1 << 14, 1 << 17}}, fabric: true},
	}
}

// engine is a registered rank.
type engine struct {
	*rig
	layout  layout
	reg     *connector.Register
	regions [][][]byte // of each its pieces
	events  []*cudatest.Event
	mapping worker.Mapping
	fds     []int
}

// newEngine describes an engine's memory, filled with noise.
func (r *rig) newEngine(l layout, seed uint64) *engine {
	r.t.Helper()
	e := &engine{rig: r, layout: l}
	held, shardBytes := max(l.held, 1), 0
	for _, run := range l.runs {
		shardBytes += int(run.Bytes) / held
	}
	e.reg = &connector.Register{
		NumBlocks: l.blocks, HeldShards: l.held, DeviceUUID: uuid(0), Segments: l.runs,
		Namespace: kv.NamespaceSpec{Groups: []kv.GroupSpec{{ShardBytes: shardBytes, Shards: held}}},
	}
	var chunks [][]byte
	var fds []int
	if l.chunks != nil && !l.fabric {
		chunks, fds = cudatest.NewChunks(r.t, slices.Concat(l.chunks...)...)
	}
	for i, size := range l.bytes {
		region := connector.KVRegion{Kind: KindIPC, Bytes: size}
		if i < len(l.chunks) && l.fabric {
			region.Kind, region.Chunks = KindFabric, l.chunks[i]
			var pieces [][]byte
			for _, n := range l.chunks[i] {
				data, handle := cudatest.NewFabric(r.t, n)
				pieces, region.Handle = append(pieces, data), append(region.Handle, handle[:]...)
			}
			e.regions = append(e.regions, pieces)
		} else if i < len(l.chunks) {
			region.Kind, region.Chunks, region.FD = KindVMM, l.chunks[i], len(e.fds)
			e.regions = append(e.regions, chunks[:len(region.Chunks)])
			e.fds = append(e.fds, fds[:len(region.Chunks)]...)
			chunks, fds = chunks[len(region.Chunks):], fds[len(region.Chunks):]
		} else {
			// Not at the allocation's beginning, as PyTorch hands it out.
			const before = 2048
			data, handle := cudatest.NewMemory(r.t, before+size)
			region.Handle, region.Address = handle[:], before
			e.regions = append(e.regions, [][]byte{data[before:]})
		}
		e.reg.Regions = append(e.reg.Regions, region)
	}
	for range 2 {
		event := cudatest.NewEvent(r.t)
		e.events = append(e.events, event)
		e.reg.Events = append(e.reg.Events, event.Handle[:])
	}
	noise := rand.NewChaCha8([32]byte{byte(seed)})
	for block := range l.blocks {
		for shard := range held {
			content := make([]byte, shardBytes)
			_, _ = noise.Read(content)
			e.write(uint32(block), shard, content)
		}
	}
	return e
}

// descriptors are the registration's, for the device to close.
func (e *engine) descriptors() (fds []int) {
	for _, fd := range e.fds {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			e.t.Fatal(err)
		}
		fds = append(fds, copied)
	}
	return fds
}

// registered maps the engine's memory.
func (e *engine) registered() *engine {
	e.t.Helper()
	m, err := e.device.Map(1, e.reg, e.descriptors())
	if err != nil {
		e.t.Fatal(err)
	}
	e.mapping = m
	return e
}

func (e *engine) close() {
	e.t.Helper()
	if err := e.mapping.Close(); err != nil {
		e.t.Error(err)
	}
}

// each calls visit for the pieces of a shard, in order.
func (e *engine) each(block uint32, shard int, visit func(piece []byte)) {
	for _, run := range e.layout.runs {
		if run.Shard != shard {
			continue
		}
		at := run.Offset + uint64(block)*run.BlockStride
		left := run.Bytes
		for _, chunk := range e.regions[run.Region] { // a piece may lie in several
			size := uint64(len(chunk))
			if at >= size {
				at -= size
				continue
			}
			n := min(left, size-at)
			visit(chunk[at : at+n])
			if at, left = 0, left-n; left == 0 {
				break
			}
		}
	}
}

func (e *engine) read(block uint32, shard int) (content []byte) {
	e.each(block, shard, func(piece []byte) { content = append(content, piece...) })
	return content
}

func (e *engine) write(block uint32, shard int, content []byte) {
	e.each(block, shard, func(piece []byte) { content = content[copy(piece, content):] })
}

// batch is copies of all blocks but the null block, to places in the store's
// memory from one on.
func (e *engine) batch(from int) (copies []worker.ShardCopy) {
	bytes := e.reg.Namespace.Groups[0].ShardBytes
	for block := 1; block < e.layout.blocks; block++ {
		for shard := range e.reg.Held() {
			copies = append(copies, worker.ShardCopy{BlockID: uint32(block), Shard: shard, Memory: e.memory[from : from+bytes]})
			from += bytes + 64 // as the store does: no neighbours
		}
	}
	if from > len(e.memory) {
		e.t.Fatal("the store is too small for the test")
	}
	return copies
}

// copy copies a batch and waits for it.
func (e *engine) copy(ctx context.Context, direction worker.Direction, after worker.Event, batch []worker.ShardCopy) error {
	return <-e.begin(ctx, direction, after, batch)
}

func (e *engine) begin(ctx context.Context, direction worker.Direction, after worker.Event, batch []worker.ShardCopy) <-chan error {
	done := make(chan error, 2)
	e.mapping.Copy(ctx, direction, after, batch, func(err error) { done <- err })
	return done
}

// roundTrip stores all blocks and loads them back, by way of the store's memory
// from one place on.
func (e *engine) roundTrip(from int) {
	e.t.Helper()
	batch := e.batch(from)
	if err := e.copy(e.t.Context(), worker.Store, nil, batch); err != nil {
		e.t.Fatal(err)
	}
	null := e.read(0, 0)
	want := make([][]byte, len(batch))
	for i, c := range batch {
		want[i] = e.read(c.BlockID, c.Shard)
		if !bytes.Equal(c.Memory, want[i]) {
			e.t.Fatalf("%s: block %d, shard %d: the stored bytes differ", e.layout.name, c.BlockID, c.Shard)
		}
		if c.Checksum != crc32.Checksum(want[i], crc32.MakeTable(crc32.Castagnoli)) {
			e.t.Errorf("%s: block %d: the checksum is of something else", e.layout.name, c.BlockID)
		}
		e.write(c.BlockID, c.Shard, bytes.Repeat([]byte{0xee}, len(want[i])))
		batch[i].Checksum = 0
	}
	if err := e.copy(e.t.Context(), worker.Load, nil, batch); err != nil {
		e.t.Fatal(err)
	}
	for i, c := range batch {
		if !bytes.Equal(e.read(c.BlockID, c.Shard), want[i]) {
			e.t.Fatalf("%s: block %d, shard %d: the loaded bytes differ", e.layout.name, c.BlockID, c.Shard)
		}
		if c.Checksum != crc32.Checksum(want[i], crc32.MakeTable(crc32.Castagnoli)) {
			e.t.Errorf("%s: block %d: the load's checksum is of something else", e.layout.name, c.BlockID)
		}
	}
	if !bytes.Equal(null, e.read(0, 0)) {
		e.t.Errorf("%s: the null block was written", e.layout.name)
	}
}
