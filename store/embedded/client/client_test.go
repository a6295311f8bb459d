package client

import (
	"context"
	"errors"
	"hash/crc32"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/proc"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// daemon stands for mooncake-lookupd: a master, its session socket and its gRPC
// service, which can be killed and replaced.
type daemon struct {
	t       *testing.T
	dir     string
	segment *shm.Segment
	master  *embedded.Master
	listen  *unixmsg.Listener
	server  *grpc.Server
	gate    func(ctx context.Context) // called before every gRPC call
	wg      sync.WaitGroup
	last    chan struct{} // closed when the last connection was accepted
	mute    bool          // it makes no offers, as masters did before there were any
	mu      sync.Mutex
	conns   []*unixmsg.Conn
	number  uint64
}

func options() embedded.Options {
	return embedded.Options{Alive: proc.Alive, Log: slog.New(slog.DiscardHandler)}
}

func startDaemon(t *testing.T, dir string, adopt *shm.Segment) *daemon {
	d := &daemon{t: t, dir: dir, segment: adopt, last: make(chan struct{})}
	var err error
	if adopt == nil {
		layout, lerr := embedded.NewLayout([16]byte{byte(time.Now().UnixNano())}, 4<<20)
		if lerr != nil {
			t.Fatal(lerr)
		}
		if d.segment, err = shm.NewSegment("test", layout.FileBytes); err != nil {
			t.Fatal(err)
		}
		d.master, err = embedded.Create(d.segment, layout, options())
	} else {
		d.master, _, err = embedded.Adopt(adopt, options())
	}
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = d.master.PrepareNext(); err != nil {
			t.Fatal(err)
		}
	}
	sock, err := net.Listen("unix", filepath.Join(dir, "store.sock"))
	if err != nil {
		t.Fatal(err)
	}
	d.server = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if d.gate != nil {
			d.gate(ctx)
		}
		return h(ctx, req)
	}))
	storepb.RegisterStoreServer(d.server, embedded.NewService(d.master))
	d.wg.Go(func() { _ = d.server.Serve(sock) })
	// Last: whoever has a session makes calls.
	if d.listen, err = unixmsg.Listen(filepath.Join(dir, "lookupd.sock"), unixmsg.Options{}); err != nil {
		t.Fatal(err)
	}
	d.wg.Go(d.accept)
	return d
}

func (d *daemon) accept() {
	defer close(d.last)
	for {
		conn, err := d.listen.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		d.number++
		number := d.number
		d.conns = append(d.conns, conn)
		d.mu.Unlock()
		d.wg.Go(func() {
			defer conn.Close()
			frames := connector.NewFrameReader(conn)
			if _, err := frames.Next(); err != nil {
				return
			}
			_ = send(conn, &connector.Welcome{Type: connector.TypeWelcome, Protocol: connector.ProtocolVersion, Session: number})
			start, err := proc.StartTime(conn.PeerPID())
			if err != nil {
				return
			}
			_ = d.master.ServeClient(conversation{conn, frames, d.mute}, embedded.ClientProcess{PID: uint32(conn.PeerPID()), Start: start}, number, d.segment.FD())
		})
	}
}

// conversation is a session's messages.
type conversation struct {
	conn   *unixmsg.Conn
	frames *connector.FrameReader
	mute   bool
}

func (c conversation) Send(msg any, fds ...int) error {
	if registered, ok := msg.(*connector.Registered); ok && c.mute {
		registered.Offers = false
	}
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		return err
	}
	return c.conn.WriteFDs(frame, fds)
}

func (c conversation) Close() { _ = c.conn.Close() }

func (c conversation) Receive() (any, error) {
	frame, err := c.frames.Next()
	if err != nil {
		return nil, err
	}
	return connector.Decode(frame)
}

// kill ends everything at once, as kill -9 does.
func (d *daemon) kill() {
	_ = d.listen.Close()
	<-d.last // or one that comes meanwhile would be left
	d.mu.Lock()
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.server.Stop()
	d.wg.Wait()
}

type osEdge struct{ dir string }

func (e osEdge) Dial(ctx context.Context) (Conn, error) {
	return unixmsg.Dial(ctx, filepath.Join(e.dir, "lookupd.sock"), nil)
}
func (e osEdge) Map(fd int, bytes uint64) (Mapping, error) { return shm.OpenSegment(fd, bytes) }
func (e osEdge) CloseFD(fd int)                            { _ = unix.Close(fd) }

func startClient(t *testing.T, dir string) *Client {
	rpc, err := grpc.NewClient("unix://"+filepath.Join(dir, "store.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Edge: osEdge{dir}, RPC: rpc, ID: 42, PID: os.Getpid(), Version: "test", Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		_ = rpc.Close()
	})
	return c
}

func waitReady(t *testing.T, c *Client, want bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		changed := c.Changed()
		if c.Ready() == want {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("client did not become ready=%v", want)
		}
	}
}

func spec() *kv.NamespaceSpec {
	return &kv.NamespaceSpec{
		Model: "m", Dtype: "bfloat16", Layout: "LBHNC/rank_local", HashAlgorithm: "sha256", HashBytes: 32,
		HashBlockTokens: 16, SchedulerBlockTokens: 16, TP: 1, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 100 << 10, Shards: 1}},
	}
}

func put(t *testing.T, c *Client, ns store.Namespace, chunk byte) store.PutGrant {
	t.Helper()
	g, err := c.PutStart(t.Context(), ns, store.PutOptions{}, []store.PutItem{{Hash: kv.Hash{chunk}}})
	if err != nil || g[0].Status != store.PutGranted {
		t.Fatalf("PutStart: %+v, %v", g, err)
	}
	return g[0]
}

func end(t *testing.T, c *Client, ns store.Namespace, g store.PutGrant, fill byte) bool {
	t.Helper()
	b := c.Segments()[g.Place.Segment].Data()[g.Place.Offset:][:g.Place.Bytes]
	for i := range b {
		b[i] = fill
	}
	ok, err := c.PutEnd(t.Context(), ns, []store.PutCommit{{Ticket: g.Ticket, Checksum: crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))}})
	if err != nil {
		t.Fatal(err)
	}
	return ok[0]
}

// TestPutsCarryTheirLife: what a put says of time and pins is the master's to keep.
func TestPutsCarryTheirLife(t *testing.T) {
	dir := t.TempDir()
	d := startDaemon(t, dir, nil)
	defer d.kill()
	c := startClient(t, dir)
	waitReady(t, c, true)
	ns := open(t, c)
	for i, opts := range []store.PutOptions{{}, {TTL: time.Hour}, {SaltTag: "t", Pin: store.PinHard}} {
		g, err := c.PutStart(t.Context(), ns, opts, []store.PutItem{{Hash: kv.Hash{byte(1 + i)}}})
		if err != nil || g[0].Status != store.PutGranted || !end(t, c, ns, g[0], 7) {
			t.Fatalf("put %d: %+v, %v", i, g, err)
		}
	}
	if got := d.master.Stats(); got.Expiring != 1 || got.PinnedBytes == 0 {
		t.Errorf("%d chunks expire and %d bytes are pinned; want 1 and those of a chunk", got.Expiring, got.PinnedBytes)
	}
}

func get(t *testing.T, c *Client, ns store.Namespace, chunk byte) store.GetResult {
	t.Helper()
	r, err := c.Get(t.Context(), ns, store.Lease{}, []store.GetItem{{Hash: kv.Hash{chunk}}})
	if err != nil {
		t.Fatal(err)
	}
	return r[0]
}

func open(t *testing.T, c *Client) store.Namespace {
	t.Helper()
	ns, err := c.OpenNamespace(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestRestartedMasterServesTheSameHits(t *testing.T) {
	dir := t.TempDir()
	d := startDaemon(t, dir, nil)
	c := startClient(t, dir)
	waitReady(t, c, true)
	ns := open(t, c)
	if !end(t, c, ns, put(t, c, ns, 1), 0xAB) {
		t.Fatal("put was void")
	}
	read := get(t, c, ns, 1)
	half := put(t, c, ns, 2)

	d.kill()
	waitReady(t, c, false)
	if _, err := c.Get(t.Context(), ns, store.Lease{}, nil); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("get without a master: %v", err)
	}
	info, fd, ok := c.Kept()
	if !ok {
		t.Fatal("the client kept no segment")
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := shm.OpenSegment(dup, info.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	_ = d.segment.Close()
	d2 := startDaemon(t, dir, adopted)
	defer func() { d2.kill(); _ = adopted.Close() }()
	waitReady(t, c, true)

	if same := open(t, c); same != ns {
		t.Fatalf("the namespace is %+v, it was %+v", same, ns)
	}
	again := get(t, c, ns, 1)
	if again.Status != store.GetReady || again.Place.Offset != read.Place.Offset {
		t.Fatalf("after the restart: %+v, before: %+v", again, read)
	}
	if b := c.Segments()[again.Place.Segment].Data()[again.Place.Offset]; b != 0xAB {
		t.Fatalf("byte %#x", b)
	}
	if got := d2.master.Stats(); got.OpenReads != 2 || got.OpenPuts != 1 {
		t.Fatalf("declared reads and puts: %+v", got)
	}
	if end(t, c, ns, half, 1) {
		t.Fatal("a put of the dead master was published")
	}
	if err := c.Release(t.Context(), []uint64{read.Ref, again.Ref}); err != nil {
		t.Fatal(err)
	}
	if got := d2.master.Stats(); got.OpenReads != 0 || got.OpenPuts != 0 {
		t.Fatalf("left behind: %+v", got)
	}
}

// TestUncertainCallIsSettled: a put_start whose answer is lost must not keep its
// place for ever.
func TestUncertainCallIsSettled(t *testing.T) {
	dir := t.TempDir()
	d := startDaemon(t, dir, nil)
	defer func() { d.kill(); _ = d.segment.Close() }()
	c := startClient(t, dir)
	waitReady(t, c, true)
	ns := open(t, c)
	release := make(chan struct{})
	var once sync.Once
	d.gate = func(context.Context) { once.Do(func() { <-release }) }
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := c.PutStart(ctx, ns, store.PutOptions{}, []store.PutItem{{Hash: kv.Hash{9}}}); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("PutStart without an answer: %v", err)
	}
	close(release)
	waitReady(t, c, true)
	// Whether the lost call was carried out before or is refused after the new
	// session, nothing of it may remain.
	g := put(t, c, ns, 9)
	if !end(t, c, ns, g, 1) {
		t.Fatal("put was void")
	}
	if got := d.master.Stats(); got.OpenPuts != 0 {
		t.Fatalf("open puts: %+v", got)
	}
}

func TestNewSegmentDoesNotMixWithTheOld(t *testing.T) {
	dir := t.TempDir()
	d := startDaemon(t, dir, nil)
	c := startClient(t, dir)
	waitReady(t, c, true)
	ns := open(t, c)
	old := put(t, c, ns, 1)
	oldMemory := c.Segments()[old.Place.Segment].Data()
	d.kill()
	waitReady(t, c, false)
	_ = d.segment.Close()
	d = startDaemon(t, dir, nil)
	defer func() { d.kill(); _ = d.segment.Close() }()
	waitReady(t, c, true)
	ns = open(t, c)
	fresh := put(t, c, ns, 1)
	if fresh.Place.Segment == old.Place.Segment {
		t.Fatal("two segments have one number")
	}
	oldMemory[old.Place.Offset] = 1 // still mapped: a late copy must not fault
	if ok, err := c.PutEnd(t.Context(), ns, []store.PutCommit{{Ticket: old.Ticket}}); err != nil || ok[0] {
		t.Fatalf("a put of the old segment: %v, %v", ok, err)
	}
	// Who makes its pages ready has it, too, until that has ended.
	for deadline := time.Now().Add(30 * time.Second); c.Segments()[old.Place.Segment].Data() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the old segment is still mapped although nothing is held in it")
		}
	}
	if !end(t, c, ns, fresh, 2) {
		t.Fatal("put into the new segment was void")
	}
}

func TestBehaviour(t *testing.T) {
	storetest.TestStore(t, func(t *testing.T) store.Store {
		dir := t.TempDir()
		d := startDaemon(t, dir, nil)
		t.Cleanup(func() { d.kill(); _ = d.segment.Close() })
		c := startClient(t, dir)
		waitReady(t, c, true)
		return c
	})
}

// TestRefusalsKeepTheirMeaning: what the caller branches on survives gRPC, and
// does not end the session.
func TestRefusalsKeepTheirMeaning(t *testing.T) {
	dir := t.TempDir()
	d := startDaemon(t, dir, nil)
	defer func() { d.kill(); _ = d.segment.Close() }()
	c := startClient(t, dir)
	waitReady(t, c, true)
	large := spec()
	large.Groups[0].ShardBytes = 1 << 30
	if _, err := c.OpenNamespace(t.Context(), large); !errors.Is(err, store.ErrShardTooLarge) {
		t.Errorf("a shard of 1 GiB in a store of 4 MiB: %v", err)
	}
	invalid := spec()
	invalid.TP = 0
	if _, err := c.OpenNamespace(t.Context(), invalid); err == nil || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("an invalid namespace: %v", err)
	}
	if _, err := c.PutStart(t.Context(), store.Namespace{ID: 77}, store.PutOptions{}, nil); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("a namespace that is not open: %v", err)
	}
	if !c.Ready() {
		t.Error("a refusal ended the session")
	}
}
