package worker_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// frame encodes fields as a frame.
func frame(t *testing.T, fields map[string]any) []byte {
	t.Helper()
	body, err := msgpack.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func (p *peer) raw(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// works shows that the server serves: a new engine stores and loads.
func works(t *testing.T, r *rig) {
	t.Helper()
	e := r.engine()
	sj := e.storeJob("works", ids(1, 2))
	if res := e.do(sj); res.Status != connector.StatusOK {
		t.Fatalf("%+v", res)
	}
	lj := e.loadJob("works", ids(20, 2))
	want(t, e.do(lj), lj.Job, connector.StatusOK, "")
	e.conn.Close()
}

func TestFramesThatEndTheSession(t *testing.T) {
	r := newRig(t, nil)
	for name, c := range map[string]struct {
		bytes []byte
		code  string
	}{
		"garbage":              {[]byte{0, 0, 0, 3, 1, 2, 3}, connector.CodeMalformed},
		"oversized":            {[]byte{0xff, 0xff, 0xff, 0xff}, connector.CodeMalformed},
		"unknown type":         {frame(t, map[string]any{"t": "steal"}), connector.CodeMalformed},
		"no type":              {frame(t, map[string]any{"x": 1}), connector.CodeMalformed},
		"type of a wrong type": {frame(t, map[string]any{"t": []int{1}}), connector.CodeMalformed},
		"job without an id":    {frame(t, map[string]any{"t": "load"}), connector.CodeMalformed},
		"id of a wrong type":   {frame(t, map[string]any{"t": "load", "job": "one"}), connector.CodeMalformed},
		"a second hello":       {frame(t, map[string]any{"t": "hello"}), connector.CodeNotAllowed},
		"another's message":    {frame(t, map[string]any{"t": "result", "job": 1}), connector.CodeNotAllowed},
		"segments":             {frame(t, map[string]any{"t": "segments", "fds": 0}), connector.CodeNotAllowed},
	} {
		e := r.engine()
		e.raw(c.bytes)
		if got := expect[*connector.Error](e.peer); got.Code != c.code || got.Job != 0 || got.Message == "" {
			t.Errorf("%s: %+v, want code %s", name, got, c.code)
		}
		e.expectEOF()
	}
	works(t, r)
	if r.server.Stats().MalformedFrames == 0 {
		t.Error("malformed frames are not counted")
	}
}

func TestTornFrameEndsTheSessionQuietly(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	e.raw([]byte{0, 0, 1, 0, 0x81})
	e.conn.Close()
	works(t, r)
}

func TestJobsThatAreRefused(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	// What does not decode is answered by an error that names the job.
	for _, fields := range []map[string]any{
		{"t": "load", "job": 900, "token_len": -5},
		{"t": "store", "job": 901, "hashes": make([]byte, 33), "hash_len": 32},
		{"t": "store", "job": 902, "blocks": []byte{1, 2}},
		{"t": "load", "job": 903, "blocks": "no"},
	} {
		e.raw(frame(t, fields))
		if got := expect[*connector.Error](e.peer); got.Code != connector.CodeMalformed || got.Job != uint64(fields["job"].(int)) {
			t.Errorf("%v: %+v", fields, got)
		}
	}
	// What contradicts the registration is answered by a result.
	copies := r.gate.copies.Load()
	loads := map[string]func(*connector.LoadJob){
		"block id beyond the cache": func(j *connector.LoadJob) { j.Blocks = [][]byte{table(20, 21, 22, numBlocks)} },
		"a table too few":           func(j *connector.LoadJob) { j.Blocks = nil },
		"a table too many":          func(j *connector.LoadJob) { j.Blocks = append(j.Blocks, nil) },
		"a table too short":         func(j *connector.LoadJob) { j.Blocks = [][]byte{table(20, 21)} },
		"hashes too few":            func(j *connector.LoadJob) { j.Hashes = j.Hashes[:64] },
		"hashes of another length":  func(j *connector.LoadJob) { j.HashLen = 16 },
		"a length inside a block":   func(j *connector.LoadJob) { j.TokenLen-- },
		"a tail that is not there":  func(j *connector.LoadJob) { j.TailBoundaries = [][2]int{{0, 80}} },
		"a tail of another group":   func(j *connector.LoadJob) { j.TailBoundaries = [][2]int{{1, 64}} },
	}
	for name, spoil := range loads {
		job := e.loadJob("p", ids(20, 4))
		spoil(job)
		if res := e.do(job); res.Status != connector.StatusFailed || res.Reason != "malformed" || res.Job != job.Job {
			t.Errorf("%s: %+v", name, res)
		}
	}
	stores := map[string]func(*connector.StoreJob){
		"block id beyond the cache": func(j *connector.StoreJob) { j.Blocks = [][]byte{table(1, numBlocks)} },
		"a table too few":           func(j *connector.StoreJob) { j.Blocks = nil },
		"hashes too few":            func(j *connector.StoreJob) { j.Hashes = j.Hashes[:32] },
		"a hash before the first":   func(j *connector.StoreJob) { j.FirstHash, j.Hashes = 1, j.Hashes[32:] },
		"a parent before the first": func(j *connector.StoreJob) { j.FirstHash, j.Hashes, j.FirstBlock = 1, j.Hashes[32:], []int{1} },
		"a boundary put beyond":     func(j *connector.StoreJob) { j.BoundaryPuts = [][3]int{{0, numBlocks, 16}} },
		"a boundary put far behind": func(j *connector.StoreJob) { j.BoundaryPuts = [][3]int{{0, 1, 1 << 30}} },
		"a boundary put unaligned":  func(j *connector.StoreJob) { j.BoundaryPuts = [][3]int{{0, 1, 17}} },
	}
	for name, spoil := range stores {
		job := e.storeJob("q", ids(1, 4))
		spoil(&job.Parts[0])
		if res := e.do(job); res.Status != connector.StatusFailed || res.Reason != "malformed" || !bytes.Equal(res.Incomplete, table(0)) {
			t.Errorf("%s: %+v", name, res)
		}
	}
	if n := r.gate.copies.Load(); n != copies {
		t.Errorf("%d batches were copied", n-copies)
	}
	e.ping()
	works(t, r)
}

func TestJobIDInUseEndsTheSession(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	r.gate.armed.Store(true)
	job := e.storeJob("p", ids(1, 2))
	e.send(job)
	<-r.gate.entered
	e.send(job)
	if got := expect[*connector.Error](e.peer); got.Code != connector.CodeMalformed || got.Job != 0 {
		t.Errorf("%+v", got)
	}
	r.gate.armed.Store(false)
	r.gate.unblock()
	works(t, r)
	r.settled()
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	unsealed, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealed)
	if err := unix.Ftruncate(unsealed, numBlocks*blockBytes); err != nil {
		t.Fatal(err)
	}
	short, err := shm.Create(context.Background(), "short", numBlocks*blockBytes-1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(short)
	r := newRig(t, nil)
	for name, c := range map[string]struct {
		change func(*registration)
		fds    func(*registration) []int
		code   string
	}{
		"a KV file of another size": {nil, func(g *registration) []int { return []int{short, g.boardFD} }, connector.CodeBadDescriptor},
		"a KV file that can shrink": {nil, func(g *registration) []int { return []int{unsealed, g.boardFD} }, connector.CodeBadDescriptor},
		"a board of another size":   {func(g *registration) { g.reg.JobSlots++ }, nil, connector.CodeBadDescriptor},
		"a board that is the cache": {nil, func(g *registration) []int { return []int{g.kvFD, g.kvFD} }, connector.CodeBadDescriptor},
		"a descriptor too few":      {nil, func(g *registration) []int { return []int{g.kvFD} }, connector.CodeBadDescriptor},
		"a descriptor too many":     {nil, func(g *registration) []int { return []int{g.kvFD, g.boardFD, g.kvFD} }, connector.CodeBadDescriptor},
		"the board's as a region's": {func(g *registration) { g.reg.Regions[0].FD = 1 }, nil, connector.CodeBadDescriptor},
		"a device we do not have":   {func(g *registration) { g.reg.Device = "tpu" }, nil, connector.CodeUnsupported},
		"a kind of group":           {func(g *registration) { g.reg.Namespace.Groups[0].Kind = "quantum" }, nil, connector.CodeUnsupported},
		"segments that overlap":     {func(g *registration) { g.reg.Segments[1].Offset = 0 }, nil, connector.CodeWrongNamespace},
		"segments beyond the cache": {func(g *registration) { g.reg.NumBlocks++ }, nil, connector.CodeWrongNamespace},
		"another shard length":      {func(g *registration) { g.reg.Namespace.Groups[0].ShardBytes++ }, nil, connector.CodeWrongNamespace},
		"no model":                  {func(g *registration) { g.reg.Namespace.Model = "" }, nil, connector.CodeMalformed},
		"a shard that is not there": {func(g *registration) { g.reg.ShardByGroup = []int{1} }, nil, connector.CodeMalformed},
	} {
		g := newRegistration(t)
		if c.change != nil {
			c.change(g)
		}
		fds := []int{g.kvFD, g.boardFD}
		if c.fds != nil {
			fds = c.fds(g)
		}
		p := r.dial()
		p.send(hello(connector.RoleWorkerShim))
		expect[*connector.Welcome](p)
		p.send(g.reg, fds...)
		if got := expect[*connector.Error](p); got.Code != c.code || got.Message == "" {
			t.Errorf("%s: %+v, want code %s", name, got, c.code)
		}
		p.expectEOF()
	}
	works(t, r)
}

func TestStoreRefusesTheNamespace(t *testing.T) {
	for code, refusal := range map[string]error{
		connector.CodeWrongNamespace: errors.New("no"),
		connector.CodeStoreTooSmall:  store.ErrShardTooLarge,
	} {
		r := newRig(t, nil)
		r.store.SetHook(func(string) error { return refusal })
		g := newRegistration(t)
		p := r.dial()
		p.send(hello(connector.RoleWorkerShim))
		expect[*connector.Welcome](p)
		p.send(g.reg, g.kvFD, g.boardFD)
		if got := expect[*connector.Error](p); got.Code != code {
			t.Errorf("%+v, want code %s", got, code)
		}
		p.expectEOF()
	}
}

func TestHello(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) { cfg.Autostarted = true })
	for name, c := range map[string]struct {
		msg  any
		code string
	}{
		"another version": {&connector.Hello{Type: connector.TypeHello, Protocol: connector.ProtocolVersion - 1, Role: connector.RoleProbe}, connector.CodeVersion},
		"another's role":  {hello(connector.RoleSchedulerShim), connector.CodeNotAllowed},
		"no role":         {hello(""), connector.CodeNotAllowed},
		"no hello":        {&connector.Ping{Type: connector.TypePing}, connector.CodeNotAllowed},
	} {
		p := r.dial()
		p.send(c.msg)
		if got := expect[*connector.Error](p); got.Code != c.code {
			t.Errorf("%s: %+v, want code %s", name, got, c.code)
		}
		p.expectEOF()
	}
	p := r.dial()
	p.send(hello(connector.RoleProbe))
	if w := expect[*connector.Welcome](p); w.Daemon != "mooncake-worker" || !w.Autostarted || w.Session == 0 || w.Version != "test" {
		t.Errorf("%+v", w)
	}
	p.ping()
	p.send(&connector.Cancel{Type: connector.TypeCancel})
	if got := expect[*connector.Error](p); got.Code != connector.CodeNotAllowed {
		t.Errorf("a cancel from a probe: %+v", got)
	}
	e := r.dial()
	e.send(hello(connector.RoleWorkerShim))
	expect[*connector.Welcome](e)
	e.ping()
	e.send(&connector.Cancel{Type: connector.TypeCancel})
	if got := expect[*connector.Error](e); got.Code != connector.CodeNotAllowed {
		t.Errorf("a cancel before register: %+v", got)
	}
}

func TestSilentPeerIsDropped(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) { cfg.HelloTimeout = 1 })
	r.dial().expectEOF()
}

func TestTooManyConnections(t *testing.T) {
	r := newRig(t, func(cfg *worker.Config) { cfg.MaxConns = 1 })
	first := r.engine()
	second := r.dial()
	if got := expect[*connector.Error](second); got.Code != connector.CodeUnavailable {
		t.Errorf("%+v", got)
	}
	second.expectEOF()
	first.ping()
}

func TestRecovery(t *testing.T) {
	segment, err := shm.Create(context.Background(), "segment", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(segment)
	info := connector.SegmentInfo{UUID: "0123", Bytes: 4096, DataOffset: 64}
	var keeps atomic.Bool
	r := newRig(t, func(cfg *worker.Config) {
		cfg.KeptSegments = func(send func([]connector.SegmentInfo, []int) error) error {
			if !keeps.Load() {
				return send(nil, nil)
			}
			return send([]connector.SegmentInfo{info}, []int{segment})
		}
	})
	for kept, protocol := range map[bool]int{true: connector.ProtocolVersion + 1, false: connector.ProtocolVersion} {
		keeps.Store(kept)
		p := r.dial()
		h := hello(connector.RoleRecovery)
		h.Protocol = protocol // a new lookupd may speak another one
		p.send(h)
		expect[*connector.Welcome](p)
		got := expect[*connector.Segments](p)
		fds, err := p.conn.TakeFDs(got.FDs)
		if err != nil {
			t.Fatal(err)
		}
		if kept {
			if !slices.Equal(got.Segments, []connector.SegmentInfo{info}) || len(fds) != 1 || shm.Check(fds[0], 4096) != nil {
				t.Errorf("%+v with %d descriptors", got, len(fds))
			}
			unix.Close(fds[0])
		} else if len(got.Segments) != 0 || len(fds) != 0 {
			t.Errorf("%+v with %d descriptors", got, len(fds))
		}
		p.expectEOF()
	}
}

func TestSessionsAreCounted(t *testing.T) {
	counts := make(chan int, 8)
	r := newRig(t, func(cfg *worker.Config) { cfg.OnSessions = func(active int) { counts <- active } })
	probe := r.dial()
	probe.send(hello(connector.RoleProbe))
	expect[*connector.Welcome](probe) // a probe keeps no daemon
	a := r.engine()
	b := r.engine()
	if got := r.server.Engines(); got != 2 {
		t.Errorf("%d engines", got)
	}
	a.conn.Close()
	for i, want := range []int{1, 2, 1} {
		if got := <-counts; got != want {
			t.Errorf("count %d is %d, want %d", i, got, want)
		}
	}
	b.conn.Close()
	if got := <-counts; got != 0 {
		t.Errorf("%d left", got)
	}
}

func TestRegisteredNamesTheNamespace(t *testing.T) {
	r := newRig(t, nil)
	digests := map[string]bool{}
	for _, model := range []string{"a", "a", "b"} {
		g := newRegistration(t)
		g.reg.Namespace.Model = model
		p := r.dial()
		p.send(hello(connector.RoleWorkerShim))
		expect[*connector.Welcome](p)
		p.send(g.reg, g.kvFD, g.boardFD)
		digests[expect[*connector.Registered](p).NamespaceDigest] = true
	}
	if len(digests) != 2 {
		t.Errorf("%v", digests)
	}
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := worker.New(worker.Config{QueueJobs: -1}); err == nil || !bytes.Contains([]byte(err.Error()), []byte("queue_jobs")) {
		t.Errorf("got %v", err)
	}
}

func TestServerThatIsClosedServesNobody(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	r.close()
	e.expectEOF()
	if err := r.server.ServeConn(e.conn); !errors.Is(err, worker.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
