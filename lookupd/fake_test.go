package lookupd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/store"
	"go.uber.org/goleak"
)

// patience bounds what a correct run never waits for.
const patience = 30 * time.Second

// fakeCatalog is a set of chunks by namespace.
type fakeCatalog struct {
	mu         sync.Mutex
	digests    [][32]byte
	resets     map[store.NamespaceID]uint64
	chunks     map[store.NamespaceID]map[store.ChunkKey]kv.Existence
	leases     map[store.Lease][]store.ChunkKey
	views      int // open ones
	fault      any // Exists panics with it
	resetErr   error
	openErr    error
	granting   chan struct{} // if not nil, Grant takes one first
	waits      chan struct{} // if not nil, Grant gives one before that
	grantFault any           // Grant panics with it
}

func newFakeCatalog() *fakeCatalog {
	return &fakeCatalog{resets: map[store.NamespaceID]uint64{}, chunks: map[store.NamespaceID]map[store.ChunkKey]kv.Existence{}, leases: map[store.Lease][]store.ChunkKey{}}
}

func (c *fakeCatalog) OpenNamespace(spec *kv.NamespaceSpec) (store.Namespace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.openErr != nil {
		return store.Namespace{}, c.openErr
	}
	at := slices.Index(c.digests, spec.Digest())
	if at < 0 {
		at = len(c.digests)
		c.digests = append(c.digests, spec.Digest())
		c.chunks[store.NamespaceID(at)] = map[store.ChunkKey]kv.Existence{}
	}
	id := store.NamespaceID(at)
	return store.Namespace{ID: id, ResetEpoch: firstGeneration + c.resets[id]}, nil
}

// firstGeneration is a namespace's before any reset; floating-point numbers lack it.
const firstGeneration = 1<<63 + 1

type fakeView struct {
	c  *fakeCatalog
	ns store.NamespaceID
}

func (c *fakeCatalog) View(ns store.NamespaceID) View {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.views++
	return fakeView{c, ns}
}

func (v fakeView) Ahead(group int, hashes kv.HashBlob, from int) (told, present int) {
	told = min(3, hashes.Len()-from)
	for present < told && v.Exists(group, hashes.At(from+present)) == kv.Present {
		present++
	}
	return told, present
}

func (v fakeView) Exists(group int, hash kv.Hash) kv.Existence {
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	if v.c.fault != nil {
		panic(v.c.fault)
	}
	return v.c.chunks[v.ns][store.ChunkKey{Group: uint32(group), Hash: hash}]
}

func (c *fakeCatalog) Ask(context.Context, store.NamespaceID, []store.ChunkKey) error { return nil }

func (v fakeView) Ancestors(int, []byte, int, int, int, int) (found, present int, stray bool) {
	return 0, 0, false
}

func (v fakeView) Abandon() { v.Close() }

func (v fakeView) Close() {
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	v.c.views--
}

func (c *fakeCatalog) Grant(_ store.NamespaceID, holder store.Lease, chunks []store.ChunkKey, _ time.Duration) {
	if c.waits != nil {
		c.waits <- struct{}{}
	}
	if c.granting != nil {
		<-c.granting
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.grantFault != nil {
		panic(c.grantFault)
	}
	if c.views != 0 {
		panic("Grant under an open view deadlocks a real catalog")
	}
	c.leases[holder] = slices.Clone(chunks)
}

func (c *fakeCatalog) ReleaseLeases(engine string, requests []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range requests {
		delete(c.leases, store.Lease{Engine: engine, Request: r})
	}
}

func (c *fakeCatalog) ReleaseEngine(engine string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for holder := range c.leases {
		if holder.Engine == engine {
			delete(c.leases, holder)
		}
	}
}

func (c *fakeCatalog) Reset(ns store.NamespaceID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resetErr != nil {
		return c.resetErr
	}
	clear(c.chunks[ns])
	c.resets[ns]++
	return nil
}

func (c *fakeCatalog) put(ns store.NamespaceID, group int, hash kv.Hash, e kv.Existence) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chunks[ns][store.ChunkKey{Group: uint32(group), Hash: hash}] = e
}

func (c *fakeCatalog) lease(engine, request string) []store.ChunkKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leases[store.Lease{Engine: engine, Request: request}]
}

// fakeSockets stands for the lookup sockets of a node.
type fakeSockets struct {
	mu      sync.Mutex
	bound   map[string]*fakeEndpoint
	foreign string // a path that another process serves
}

type fakeEndpoint struct {
	sockets *fakeSockets
	path    string
	handle  func([][]byte) [][]byte
	done    chan struct{}
	once    sync.Once
}

func (s *fakeSockets) listen(path string, handle func([][]byte) [][]byte) (Endpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case path == s.foreign:
		return nil, fmt.Errorf("fake: %w", ErrPathTaken)
	case !filepath.IsAbs(path):
		return nil, fmt.Errorf("fake: %w: relative", ErrBadPath)
	case s.bound[path] != nil:
		return nil, errors.New("BUG: bound twice")
	}
	e := &fakeEndpoint{sockets: s, path: path, handle: handle, done: make(chan struct{})}
	s.bound[path] = e
	return e, nil
}

func (e *fakeEndpoint) Done() <-chan struct{} { return e.done }

func (e *fakeEndpoint) Close() error {
	e.sockets.mu.Lock()
	delete(e.sockets.bound, e.path)
	e.sockets.mu.Unlock()
	e.die()
	return nil
}

func (e *fakeEndpoint) die() { e.once.Do(func() { close(e.done) }) }

func (s *fakeSockets) at(path string) *fakeEndpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound[path]
}

// acceptor adapts a unixmsg listener.
type acceptor struct{ *unixmsg.Listener }

func (a acceptor) Accept() (Conn, error) {
	conn, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func adopt(fd int) (Channel, error) {
	stream, err := unixmsg.AdoptStream(fd)
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// node is a server with fakes around it.
type node struct {
	t       *testing.T
	server  *Server
	catalog *fakeCatalog
	sockets *fakeSockets
	path    string
	busy    chan int
	took    counter
	stop    func()
}

// counter is an Observer that counts.
type counter struct{ atomic.Int64 }

func (c *counter) Observe(float64) { c.Add(1) }

func newNode(t *testing.T, adjust func(*Config)) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "ld")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, catalog: newFakeCatalog(), sockets: &fakeSockets{bound: map[string]*fakeEndpoint{}},
		path: filepath.Join(dir, "lookupd.sock"), busy: make(chan int, 64)}
	cfg := Config{
		Catalog: n.catalog, Listen: n.sockets.listen, Adopt: adopt, LeaseTTL: time.Minute,
		Welcome: connector.Welcome{Type: connector.TypeWelcome, Protocol: connector.ProtocolVersion, Daemon: "mooncake-lookupd", Version: "test"},
		OnBusy:  func(sessions int) { n.busy <- sessions },
		Took:    &n.took,
		Log:     slog.New(slog.DiscardHandler),
	}
	if adjust != nil {
		adjust(&cfg)
	}
	n.server = New(cfg)
	l, err := unixmsg.Listen(n.path, unixmsg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- n.server.Serve(ctx, acceptor{l}) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		n.stop()
		_ = os.RemoveAll(dir)
		n.sockets.mu.Lock()
		defer n.sockets.mu.Unlock()
		if len(n.sockets.bound) != 0 {
			t.Errorf("lookup sockets stay bound: %v", n.sockets.bound)
		}
		if n.catalog.views != 0 {
			t.Errorf("%d views stay open", n.catalog.views)
		}
		goleak.VerifyNone(t)
	})
	return n
}

// waitBusy waits until that many sessions are busy.
func (n *node) waitBusy(want int) {
	n.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case got := <-n.busy:
			if got == want {
				return
			}
		case <-timer.C:
			n.t.Fatalf("there were never %d busy sessions", want)
		}
	}
}

// peer is a client of the session socket.
type peer struct {
	t      *testing.T
	conn   *unixmsg.Conn
	frames *connector.FrameReader
}

func (n *node) dial() *peer {
	n.t.Helper()
	conn, err := unixmsg.Dial(context.Background(), n.path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	return &peer{n.t, conn, connector.NewFrameReader(conn)}
}

func (p *peer) send(msg any, fds ...int) {
	p.t.Helper()
	frame, err := connector.AppendFrame(nil, msg)
	if err == nil {
		err = p.conn.WriteFDs(frame, fds)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) read() (any, error) {
	frame, err := p.frames.Next()
	if err != nil {
		return nil, err
	}
	return connector.Decode(frame)
}

// receive reads a message that must be a *T.
func receive[T any](p *peer) *T {
	p.t.Helper()
	msg, err := p.read()
	if err != nil {
		p.t.Fatalf("want a %T: %v", new(T), err)
	}
	got, ok := msg.(*T)
	if !ok {
		p.t.Fatalf("got %+v, want a %T", msg, new(T))
	}
	return got
}

func (p *peer) wantError(code string) {
	p.t.Helper()
	if got := receive[connector.Error](p); got.Code != code {
		p.t.Errorf("got error %s (%s), want %s", got.Code, got.Message, code)
	}
}

func (p *peer) wantEOF() {
	p.t.Helper()
	if msg, err := p.read(); !errors.Is(err, io.EOF) {
		p.t.Errorf("got %+v, %v, want the end of the session", msg, err)
	}
}

func (p *peer) hello(role, engine string, pid int, epoch uint64) *connector.Welcome {
	p.t.Helper()
	p.send(&connector.Hello{Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: role, EngineID: engine, PID: pid, Epoch: epoch})
	return receive[connector.Welcome](p)
}

// spec is a Llama-like namespace: one group, hashes of 16 bytes over 16 tokens.
func spec(model string) kv.NamespaceSpec {
	return kv.NamespaceSpec{
		Model: model, HashBytes: 16, HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1,
		TP: 1, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 4096, Shards: 1}},
	}
}

func engineMsg(model, path string) *connector.Engine {
	return &connector.Engine{Type: connector.TypeEngine, Namespace: spec(model), LookupPath: path, LookupEngine: "leases-" + model}
}

// register registers an engine and returns its session.
func (n *node) register(engine, model, path string) *peer {
	n.t.Helper()
	p := n.dial()
	p.hello(connector.RoleSchedulerShim, engine, 100, 1)
	p.send(engineMsg(model, path))
	if got := receive[connector.Registered](p); got.LookupPath != path || !got.StoreReady || got.LookupStride != chainStride || len(got.NamespaceDigest) != 64 {
		n.t.Errorf("registered as %+v", got)
	}
	return p
}

func rulesOf(t testing.TB, ns *kv.NamespaceSpec) *coordinator.Coordinator {
	t.Helper()
	rules, err := coordinator.New(coordinator.ConfigOf(ns))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}
