package daemon

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/client"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(asDaemon); what != "" {
		os.Exit(runAsDaemon(what))
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what a correct run never waits for.
const patience = 30 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// shortDir is a directory whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run")
}

// running is a daemon in this process.
type running struct {
	t    *testing.T
	stop context.CancelFunc
	done chan error
	over bool
}

func start(t *testing.T, run func(context.Context) error) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{t: t, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- run(ctx) }()
	t.Cleanup(r.end)
	return r
}

// end stops the daemon and waits for it.
func (r *running) end() {
	if !r.over {
		r.stop()
		r.wait()
	}
}

// wait waits for the daemon to end by itself.
func (r *running) wait() {
	r.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Error(err)
		}
		r.over = true
		r.stop()
	case <-timer.C:
		r.t.Fatal("the daemon does not end")
	}
}

func lookupdConfig(t *testing.T, dir string) *config.LookupdConfig {
	t.Helper()
	cfg := &config.LookupdConfig{StoreBytes: 16 << 20}
	cfg.RuntimeDir = dir
	cfg.SetDefaults(os.DirFS("/"))
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// startLookupd starts one and waits until it answers and all of its memory is
// allocated: what is stored before may find no room.
func startLookupd(t *testing.T, dir string) *running {
	t.Helper()
	cfg := lookupdConfig(t, dir)
	r := start(t, func(ctx context.Context) error { return RunLookupd(ctx, cfg, Control{}, quiet) })
	awaitMemory(t, dir)
	return r
}

// awaitMemory waits until the lookupd of dir has all of a store as lookupdConfig wants it.
func awaitMemory(t *testing.T, dir string) {
	t.Helper()
	until(t, "memory is allocated", func() bool {
		s, err := LookupdStatus(t.Context(), dir)
		return err == nil && s.Store.CapacityBytes == 16<<20
	})
}

func startWorker(t *testing.T, dir string) *running {
	t.Helper()
	cfg := &config.WorkerConfig{}
	cfg.RuntimeDir = dir
	cfg.SetDefaults()
	r := start(t, func(ctx context.Context) error { return RunWorker(ctx, cfg, Control{}, quiet) })
	until(t, "worker answers", func() bool { _, err := WorkerStatus(t.Context(), dir, "host-0"); return err == nil })
	return r
}

// until polls for what another goroutine or process brings about; nothing here
// signals it.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func spec() *kv.NamespaceSpec {
	return &kv.NamespaceSpec{
		Model: "m", HashBytes: 16, HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1,
		TP: 1, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 4096, Shards: 1}},
	}
}

// engine registers an engine and returns its session and what came back.
func engine(t *testing.T, dir, lookupPath string) (*unixmsg.Conn, *connector.Registered) {
	t.Helper()
	registered, conn := engineOf(t, dir, lookupPath, spec())
	return conn, registered
}

// engineOf is engine for a namespace.
func engineOf(t *testing.T, dir, lookupPath string, spec *kv.NamespaceSpec) (*connector.Registered, *unixmsg.Conn) {
	t.Helper()
	conn, err := unixmsg.Dial(t.Context(), filepath.Join(dir, config.LookupdSocket), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	frames := connector.NewFrameReader(conn)
	if _, err := greet(conn, frames, connector.RoleSchedulerShim); err != nil {
		t.Fatal(err)
	}
	if err := say(conn, &connector.Engine{Type: connector.TypeEngine, Namespace: *spec, LookupPath: lookupPath, LookupEngine: "e"}); err != nil {
		t.Fatal(err)
	}
	registered, err := connector.Receive[connector.Registered](frames)
	if err != nil {
		t.Fatal(err)
	}
	return registered, conn
}

// put stores chunks of one shard each.
func put(t *testing.T, chunks *client.Client, blob []byte) {
	t.Helper()
	putAs(t, chunks, spec(), blob)
}

// putAs is put for a namespace.
func putAs(t *testing.T, chunks *client.Client, spec *kv.NamespaceSpec, blob []byte) {
	t.Helper()
	putShards(t, chunks, spec, blob, 1)
}

// putShards is putAs of chunks of several shards, whose bytes are 100 more in each.
func putShards(t *testing.T, chunks *client.Client, spec *kv.NamespaceSpec, blob []byte, shards int) {
	t.Helper()
	hashes, err := kv.NewHashBlob(blob, 16)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := chunks.OpenNamespace(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	items := make([]store.PutItem, hashes.Len()*shards)
	for i := range items {
		at := i / shards
		items[i] = store.PutItem{Hash: hashes.At(at), Depth: uint32(at), Shard: uint32(i % shards)}
		if at > 0 {
			items[i].Parent = hashes.At(at - 1)
		}
	}
	grants, err := chunks.PutStart(t.Context(), ns, store.PutOptions{}, items)
	if err != nil {
		t.Fatal(err)
	}
	var commits []store.PutCommit
	for i, g := range grants {
		if g.Status != store.PutGranted {
			t.Fatalf("put %d is answered %d", i, g.Status)
		}
		data := chunks.Segments()[g.Place.Segment].Data()[g.Place.Offset:][:g.Place.Bytes]
		copy(data, bytes.Repeat([]byte{byte(i/shards + 1 + 100*(i%shards))}, len(data)))
		commits = append(commits, store.PutCommit{Ticket: g.Ticket, Checksum: crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))})
	}
	published, err := chunks.PutEnd(t.Context(), ns, commits)
	if err != nil {
		t.Fatal(err)
	}
	for i, ok := range published {
		if !ok {
			t.Fatalf("put %d was void", i)
		}
	}
}

// request asks a lookup socket for anything.
func request(t *testing.T, path string, frames ...[]byte) [][]byte {
	t.Helper()
	transport, err := zmqx.New()
	if err != nil {
		t.Fatal(err)
	}
	c, err := transport.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(c.Close(), transport.Close()); err != nil {
			t.Error(err)
		}
	}()
	reply, err := c.Request(patience, frames...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// hit asks a lookup socket.
func hit(t *testing.T, path string, blob []byte) int {
	t.Helper()
	reply := request(t, path, wire.EncodeLookup2(10_000, 16, blob, "r", 1)...)
	tokens, _, err := wire.ParseHit(reply[0])
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func testBlob() []byte {
	var blob []byte
	for i := range 8 {
		blob = append(blob, bytes.Repeat([]byte{byte(i + 1)}, 16)...)
	}
	return blob
}

// What was stored is found through the lookup socket, and found again by a new
// lookupd that gets the segment back from the worker.
func TestStoredIsFoundAndSurvivesLookupd(t *testing.T) {
	dir := shortDir(t)
	worker := startWorker(t, dir) // before lookupd: it connects in the background
	first := startLookupd(t, dir)
	lookup := filepath.Join(dir, "lookup")
	_, registered := engine(t, dir, lookup)
	if registered.LookupPath != lookup || !registered.StoreReady {
		t.Errorf("registered as %+v", registered)
	}
	workerReady := func() bool {
		s, err := WorkerStatus(t.Context(), dir, "host-0")
		return err == nil && s.StoreReady
	}
	until(t, "the worker has its store", workerReady)

	chunks := readyStore(t, dir)
	put(t, chunks, testBlob())
	if got := hit(t, lookup, testBlob()); got != 128 {
		t.Fatalf("hit is %d, want 128", got)
	}

	first.end()
	if _, err := LookupdStatus(t.Context(), dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("status after the end: %v, want ErrNotRunning", err)
	}
	for _, path := range []string{lookup, filepath.Join(dir, config.LookupdSocket), filepath.Join(dir, config.StoreSocket)} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stays behind: %v", path, err)
		}
	}

	startLookupd(t, dir)
	engine(t, dir, lookup)
	if got := hit(t, lookup, testBlob()); got != 128 {
		t.Errorf("after a restart the hit is %d, want 128", got)
	}
	until(t, "the worker has its store again", workerReady)
	until(t, "no client is awaited", func() bool {
		s, err := LookupdStatus(t.Context(), dir)
		return err == nil && s.Store.UndeclaredClients == 0
	})
	worker.end()
}

func TestSecondDaemonIsRefused(t *testing.T) {
	dir := shortDir(t)
	startLookupd(t, dir)
	startWorker(t, dir)
	if err := RunLookupd(t.Context(), lookupdConfig(t, dir), Control{}, quiet); !errors.Is(err, ErrAlreadyRunning) {
		t.Errorf("a second lookupd: %v, want ErrAlreadyRunning", err)
	}
	cfg := &config.WorkerConfig{}
	cfg.RuntimeDir = dir
	cfg.SetDefaults()
	if err := RunWorker(t.Context(), cfg, Control{}, quiet); !errors.Is(err, ErrAlreadyRunning) {
		t.Errorf("a second worker: %v, want ErrAlreadyRunning", err)
	}
	if _, err := LookupdStatus(t.Context(), dir); err != nil {
		t.Errorf("the first lookupd: %v", err)
	}
	cfg.Device = "tpu-0"
	if err := RunWorker(t.Context(), cfg, Control{}, quiet); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a device of another build: %v, want ErrNoDevice", err)
	}
}

func TestAutostartedDaemonsLinger(t *testing.T) {
	dir := shortDir(t)
	lookupd := lookupdConfig(t, dir)
	lookupd.Autostarted, lookupd.Linger = true, time.Millisecond
	start(t, func(ctx context.Context) error { return RunLookupd(ctx, lookupd, Control{}, quiet) }).wait()
	cfg := &config.WorkerConfig{}
	cfg.RuntimeDir, cfg.Autostarted, cfg.Linger = dir, true, time.Millisecond
	cfg.SetDefaults()
	start(t, func(ctx context.Context) error { return RunWorker(ctx, cfg, Control{}, quiet) }).wait()
}

func TestLingerCountsFromTheLastSession(t *testing.T) {
	expired := make(chan struct{}, 8)
	l := newLinger(time.Hour, func() { expired <- struct{}{} })
	l.sessions(1)
	if l.timer != nil {
		t.Error("the time runs though there is a session")
	}
	l.after = time.Nanosecond
	l.sessions(0)
	<-expired
	l.sessions(2)
	l.sessions(1)
	l.stop()
	select {
	case <-expired:
		t.Error("expired with a session")
	default:
	}
	never := newLinger(0, func() { t.Error("expired without a time") })
	never.sessions(0)
}

func TestUnsafeRuntimeDirIsRefused(t *testing.T) {
	dir := shortDir(t)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := RunLookupd(t.Context(), lookupdConfig(t, dir), Control{}, quiet); !errors.Is(err, config.ErrRuntimeDir) {
		t.Errorf("got %v, want ErrRuntimeDir", err)
	}
}

func TestVotes(t *testing.T) {
	info := func(uuid string) connector.SegmentInfo { return connector.SegmentInfo{UUID: uuid, Bytes: 1} }
	got := byVotes([]kept{{info: info("old"), fd: -1}, {info: info("new"), fd: -1}, {info: info("new"), fd: -1}})
	if len(got) != 2 || got[0].info.UUID != "new" || got[0].votes != 2 {
		t.Errorf("got %+v", got)
	}
}

// readyStore opens a store session with the lookupd of dir, whose memory is all
// allocated when it returns. The session ends with the test.
func readyStore(t *testing.T, dir string) *client.Client {
	t.Helper()
	chunks, closeStore, err := connectStore(storeEdge{dir: dir}, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeStore(); err != nil {
			t.Error(err)
		}
	})
	until(t, "a store session", chunks.Ready)
	awaitMemory(t, dir)
	return chunks
}
