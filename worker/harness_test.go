package worker_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/hostdev"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
	"github.com/mooncake-sidecar/sidecar/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	numBlocks  = 64
	jobSlots   = 16
	blockBytes = 512 // a shard of storetest.Spec, in two segments
	tokens     = 16  // of a block
)

// rig is a server over a fake store, with a device that can be held up.
type rig struct {
	t      *testing.T
	store  *storetest.FakeStore
	ready  atomic.Bool
	gate   *gate
	server *worker.Server
	path   string
	cfg    worker.Config
	close  func() // ends everything; a second call does nothing
}

func newRig(t *testing.T, change func(*worker.Config)) *rig {
	t.Helper()
	r := &rig{t: t, store: storetest.NewFakeStore(1 << 20), gate: newGate(hostdev.Device{}), path: filepath.Join(t.TempDir(), "w")}
	r.ready.Store(true)
	r.cfg = worker.Config{
		Store: r.store, StoreReady: r.ready.Load, Devices: map[string]worker.Device{"host": r.gate},
		MapBoard: func(fd, slots int) (worker.Board, error) { return shm.MapJobBoard(fd, slots) },
		Log:      slog.New(slog.DiscardHandler), PID: os.Getpid(), Version: "test", BatchShards: 2,
		LoadPatience: time.Hour, // a load that a test holds up holds up stores
	}
	if change != nil {
		change(&r.cfg)
	}
	var err error
	if r.server, err = worker.New(r.cfg); err != nil {
		t.Fatal(err)
	}
	l, err := unixmsg.Listen(r.path, unixmsg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- r.server.Serve(func() (worker.Conn, error) {
			conn, err := l.Accept()
			if err != nil {
				return nil, err
			}
			return conn, nil
		})
	}()
	r.close = sync.OnceFunc(func() {
		r.gate.unblock()
		r.server.Close()
		l.Close()
		if err := <-served; !errors.Is(err, worker.ErrClosed) {
			t.Errorf("serve: %v", err)
		}
		if r.gate.closedBusy.Load() {
			t.Error("a mapping was closed with a copy under way")
		}
	})
	t.Cleanup(r.close)
	return r
}

// settled ends the server and checks that nothing was kept from the store.
func (r *rig) settled() {
	r.t.Helper()
	r.close()
	if refs, puts := r.store.OpenRefs(), r.store.OpenPuts(); refs != 0 || puts != 0 {
		r.t.Errorf("%d references and %d puts are left", refs, puts)
	}
}

// peer is a client's end of a session.
type peer struct {
	t      *testing.T
	conn   *unixmsg.Conn
	frames *connector.FrameReader
}

func (r *rig) dial() *peer {
	r.t.Helper()
	conn, err := unixmsg.Dial(context.Background(), r.path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return &peer{t: r.t, conn: conn, frames: connector.NewFrameReader(conn)}
}

func (p *peer) send(msg any, fds ...int) {
	p.t.Helper()
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.conn.WriteFDs(frame, fds); err != nil {
		p.t.Fatal(err)
	}
}

// next is the next frame; a test that waits for one in vain fails.
func (p *peer) next() ([]byte, error) {
	p.t.Helper()
	if err := p.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	return p.frames.Next()
}

func (p *peer) recv() any {
	p.t.Helper()
	frame, err := p.next()
	if err != nil {
		p.t.Fatalf("receive: %v", err)
	}
	msg, err := connector.Decode(frame)
	if err != nil {
		p.t.Fatal(err)
	}
	return msg
}

// expect receives a message that must be a T.
func expect[T any](p *peer) T {
	p.t.Helper()
	msg := p.recv()
	want, ok := msg.(T)
	if !ok {
		p.t.Fatalf("got %T %+v, want %T", msg, msg, want)
	}
	return want
}

func (p *peer) expectEOF() {
	p.t.Helper()
	if frame, err := p.next(); err != io.EOF {
		p.t.Fatalf("got %q, %v, want EOF", frame, err)
	}
}

// ping makes sure that everything sent before was taken by the reader, and that
// no other message was sent meanwhile.
func (p *peer) ping() {
	p.t.Helper()
	p.send(&connector.Ping{Type: connector.TypePing, Seq: 77})
	if pong := expect[*connector.Pong](p); pong.Seq != 77 {
		p.t.Fatalf("pong %d", pong.Seq)
	}
}

func hello(role string) *connector.Hello {
	return &connector.Hello{Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: role, PID: os.Getpid(), Epoch: 1}
}

// engine is a registered rank with its KV cache.
type engine struct {
	*peer
	kv    []byte
	board *shm.JobBoard
	slots uint64 // of the board
	job   uint64
	ready bool
}

// registration is what an engine sends; a test may spoil it.
type registration struct {
	reg     *connector.Register
	kv      *shm.Mapping
	board   *shm.JobBoard
	kvFD    int
	boardFD int
}

func newRegistration(t *testing.T) *registration { return newRegistrationOf(t, jobSlots) }

// newRegistrationOf is one with a board of so many slots.
func newRegistrationOf(t *testing.T, slots int) *registration {
	t.Helper()
	g := &registration{}
	var err error
	if g.kvFD, err = shm.Create(context.Background(), "kv", numBlocks*blockBytes); err != nil {
		t.Fatal(err)
	}
	if g.kv, err = shm.Map(g.kvFD, numBlocks*blockBytes); err != nil {
		t.Fatal(err)
	}
	if g.boardFD, err = shm.Create(context.Background(), "board", int64(slots)*8); err != nil {
		t.Fatal(err)
	}
	if g.board, err = shm.MapJobBoard(g.boardFD, slots); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.kv.Close()
		g.board.Close()
		unix.Close(g.kvFD)
		unix.Close(g.boardFD)
	})
	half := uint64(blockBytes / 2)
	g.reg = &connector.Register{
		Type: connector.TypeRegister, FDs: 2, Namespace: *storetest.Spec("model", 1), Device: "host", NumBlocks: numBlocks,
		ShardByGroup: []int{0}, PutStride: []int{1}, PutPhase: []int{0},
		Regions:  []connector.KVRegion{{Kind: "memfd", FD: 0, Bytes: numBlocks * blockBytes}},
		Segments: []connector.KVSegment{{Offset: 0, BlockStride: half, Bytes: half}, {Offset: numBlocks * half, BlockStride: half, Bytes: half}},
		JobBoard: 1, JobSlots: slots, LookupEngine: "lookup-engine", Verify: true,
	}
	return g
}

func (r *rig) engine() *engine { return r.engineWith(nil) }

func (r *rig) engineWith(change func(*connector.Register)) *engine {
	r.t.Helper()
	g := newRegistration(r.t)
	if change != nil {
		change(g.reg)
	}
	return r.register(g)
}

func (r *rig) register(g *registration) *engine {
	r.t.Helper()
	e := &engine{peer: r.dial(), kv: g.kv.Data(), board: g.board, slots: uint64(g.reg.JobSlots)}
	rand.NewChaCha8([32]byte{1}).Read(e.kv)
	e.send(hello(connector.RoleWorkerShim))
	expect[*connector.Welcome](e.peer)
	e.send(g.reg, g.kvFD, g.boardFD)
	e.ready = expect[*connector.Registered](e.peer).StoreReady
	return e
}

// block returns a copy of a block's bytes.
func (e *engine) block(id uint32) []byte {
	const half = blockBytes / 2
	second := numBlocks*half + id*half
	return append(bytes.Clone(e.kv[id*half:][:half]), e.kv[second:][:half]...)
}

// fill overwrites a block, as an engine does that gave it to another request.
func (e *engine) fill(id uint32, with byte) {
	const half = blockBytes / 2
	for _, at := range []uint32{id * half, numBlocks*half + id*half} {
		copy(e.kv[at:at+half], bytes.Repeat([]byte{with}, half))
	}
}

// next gives out a job id and writes its word.
func (e *engine) next() uint64 {
	e.job++
	e.board.SetWord(int(e.job%e.slots), e.job)
	return e.job
}

func (e *engine) giveUp(job uint64) {
	e.board.SetWord(int(job%e.slots), job|connector.CancelBit)
	e.send(&connector.Cancel{Type: connector.TypeCancel, Jobs: []uint64{job}})
}

func hashes(text string, n int) []byte {
	var out []byte
	for i := range n {
		h := make([]byte, 32)
		copy(h, fmt.Sprintf("%s %d", text, i))
		out = append(out, h...)
	}
	return out
}

func table(ids ...uint32) []byte {
	var out []byte
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint32(out, id)
	}
	return out
}

// run returns n block ids from first on.
func ids(first uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = first + uint32(i)
	}
	return out
}

// storeJob is a job of one part.
func (e *engine) storeJob(prefix string, blocks []uint32) *connector.StoreBatch {
	return e.batch(e.part(prefix, blocks))
}

func (e *engine) batch(parts ...connector.StoreJob) *connector.StoreBatch {
	return &connector.StoreBatch{Type: connector.TypeStore, Job: e.next(), Epoch: 1, Event: -1, Parts: parts}
}

func (e *engine) part(prefix string, blocks []uint32) connector.StoreJob {
	n := len(blocks) * tokens
	return connector.StoreJob{
		Request: "r-" + prefix, TokenLen: n, CompletedTokens: n, PromptTokens: n,
		PrefillEnd: n, HashLen: 32, Hashes: hashes(prefix, len(blocks)), Blocks: [][]byte{table(blocks...)},
	}
}

func (e *engine) loadJob(prefix string, blocks []uint32) *connector.LoadJob {
	return &connector.LoadJob{
		Type: connector.TypeLoad, Job: e.next(), Epoch: 1, Request: "l-" + prefix, TokenLen: len(blocks) * tokens,
		HashLen: 32, Hashes: hashes(prefix, len(blocks)), Blocks: [][]byte{table(blocks...)},
	}
}

// do sends a job and returns its result.
func (e *engine) do(msg any) *connector.Result {
	e.t.Helper()
	e.send(msg)
	return expect[*connector.Result](e.peer)
}

// want checks a result.
func want(t *testing.T, r *connector.Result, job uint64, status, reason string, failed ...uint32) {
	t.Helper()
	if r.Job != job || r.Status != status || r.Reason != reason || !bytes.Equal(r.Failed, table(failed...)) {
		t.Fatalf("got job %d %s %q failed %v; want job %d %s %q failed %v", r.Job, r.Status, r.Reason, r.Failed, job, status, reason, table(failed...))
	}
}

// gate is a device whose copies can be held up before their first byte.
type gate struct {
	worker.Device
	armed      atomic.Bool
	entered    chan context.Context // of the batch that is held up
	proceed    chan struct{}
	stop       chan struct{}
	unblock    func()
	closedBusy atomic.Bool
	copies     atomic.Int64 // batches that were begun
	after      atomic.Int64 // the event that the last of them waited for, if any
}

func newGate(d worker.Device) *gate {
	g := &gate{Device: d, entered: make(chan context.Context), proceed: make(chan struct{}), stop: make(chan struct{})}
	g.unblock = sync.OnceFunc(func() { close(g.stop) })
	return g
}

func (g *gate) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	m, err := g.Device.Map(pid, reg, fds)
	if err != nil {
		return nil, err
	}
	return &gatedMapping{Mapping: m, gate: g}, nil
}

type gatedMapping struct {
	worker.Mapping
	gate *gate
	busy atomic.Int64
}

// Copy holds an armed batch up until it may proceed. Then it copies whatever its
// context says: a device need not see a cancel in time.
func (m *gatedMapping) Copy(ctx context.Context, d worker.Direction, after worker.Event, batch []worker.ShardCopy, done func(error)) {
	g := m.gate
	g.copies.Add(1)
	if event, ok := after.(int); ok {
		g.after.Store(int64(event))
	}
	m.busy.Add(1)
	finish := func(err error) {
		m.busy.Add(-1)
		done(err)
	}
	go func() {
		if g.armed.Load() {
			select {
			case g.entered <- ctx:
			case <-g.stop:
			}
			select {
			case <-g.proceed:
			case <-g.stop:
			}
		}
		m.Mapping.Copy(context.WithoutCancel(ctx), d, after, batch, finish)
	}()
}

func (m *gatedMapping) Close() error {
	if m.busy.Load() != 0 {
		m.gate.closedBusy.Store(true)
	}
	return m.Mapping.Close()
}
