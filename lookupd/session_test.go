package lookupd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

func TestProbe(t *testing.T) {
	n := newNode(t, nil)
	p := n.dial()
	if w := p.hello(connector.RoleProbe, "", 1, 0); w.Daemon != "mooncake-lookupd" || w.Session == 0 {
		t.Errorf("welcome is %+v", w)
	}
	p.send(&connector.Ping{Type: connector.TypePing, Seq: 7})
	if got := receive[connector.Pong](p); got.Seq != 7 || !got.StoreReady {
		t.Errorf("pong is %+v", got)
	}
	p.send(engineMsg("m", "/l"))
	p.wantError(connector.CodeNotAllowed)
	p.wantEOF()
}

func TestEngineLife(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	n.waitBusy(1)
	if n.sockets.at("/l/one") == nil {
		t.Fatal("the lookup socket is not bound")
	}
	n.catalog.Grant(0, lease("leases-m", "r1"), []store.ChunkKey{{}}, 0)
	n.catalog.Grant(0, lease("leases-m", "r2"), []store.ChunkKey{{}}, 0)
	n.catalog.Grant(0, lease("leases-other", "r1"), []store.ChunkKey{{}}, 0)
	if reply := n.ask("/l/one", wire.EncodeRelease([]string{"r1", "unknown"})); !isStatus(reply, wire.OK) {
		t.Errorf("a release is answered %x", reply)
	}
	p.send(&connector.Ping{Type: connector.TypePing, Seq: 1})
	receive[connector.Pong](p)
	if n.catalog.lease("leases-m", "r1") != nil || n.catalog.lease("leases-m", "r2") == nil {
		t.Error("release did not release r1 alone")
	}
	if got := n.server.Stats(); len(got.Engines) != 1 || got.Engines[0].EngineID != "e1" || got.Engines[0].LookupPath != "/l/one" {
		t.Errorf("stats are %+v", got)
	}
	_ = p.conn.Close()
	n.waitBusy(0)
	if n.sockets.at("/l/one") != nil {
		t.Error("the lookup socket outlives its engine")
	}
	if n.catalog.lease("leases-m", "r2") != nil || n.catalog.lease("leases-other", "r1") == nil {
		t.Error("the end of the session did not release its leases alone")
	}
	if got := n.server.Stats(); len(got.Engines) != 0 || got.SessionsBroken != 0 {
		t.Errorf("stats are %+v", got)
	}
}

func TestTakenPathNamesItsHolder(t *testing.T) {
	n := newNode(t, nil)
	n.sockets.mu.Lock()
	n.sockets.foreign = "/l/foreign"
	n.sockets.mu.Unlock()
	n.register("e1", "m", "/l/one")
	p := n.dial()
	p.hello(connector.RoleSchedulerShim, "e2", 200, 9)
	p.send(engineMsg("m", "/l/one"))
	got := receive[connector.Error](p)
	if got.Code != connector.CodeSocketTaken || !strings.Contains(got.Message, "e1") || !strings.Contains(got.Message, "100") {
		t.Errorf("got %+v, want socket_taken that names e1 and pid 100", got)
	}
	p.wantEOF()
	p = n.dial()
	p.hello(connector.RoleSchedulerShim, "e2", 200, 9)
	p.send(engineMsg("m", "/l/foreign"))
	p.wantError(connector.CodeSocketTaken)
	p.wantEOF()
	n.register("e2", "m", "/l/one_engine_e2")
	if n.sockets.at("/l/one") == nil {
		t.Error("the holder has lost its socket")
	}
}

// An engine process that reconnects gets its path back though its old session
// has not ended yet.
func TestSameProcessSupersedesItsOldSession(t *testing.T) {
	n := newNode(t, nil)
	old := n.register("e1", "m", "/l/one")
	fresh := n.register("e1", "m", "/l/one")
	old.wantEOF()
	fresh.send(&connector.Ping{Type: connector.TypePing, Seq: 3})
	receive[connector.Pong](fresh)
	if n.sockets.at("/l/one") == nil {
		t.Error("the path is not bound")
	}
	stale := n.dial()
	stale.hello(connector.RoleSchedulerShim, "e1", 100, 0)
	stale.send(engineMsg("m", "/l/one"))
	stale.wantError(connector.CodeSocketTaken)
}

func TestFailedEndpointEndsTheSession(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	n.sockets.at("/l/one").die()
	p.wantEOF()
	n.waitBusy(0)
	n.register("e1", "m", "/l/one")
}

func TestRefusedEngines(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*connector.Engine)
		code   string
	}{
		"no lease name": {func(e *connector.Engine) { e.LookupEngine = "" }, connector.CodeMalformed},
		"bad namespace": {func(e *connector.Engine) { e.Namespace.Groups[0].BlockTokens = 17 }, connector.CodeMalformed},
		"unknown kind":  {func(e *connector.Engine) { e.Namespace.Groups[0].Kind = "holographic" }, connector.CodeUnsupported},
		"relative path": {func(e *connector.Engine) { e.LookupPath = "here" }, connector.CodeMalformed},
		"huge shard":    {func(e *connector.Engine) { e.Namespace.Model = "huge" }, connector.CodeStoreTooSmall},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			if name == "huge shard" {
				n.catalog.mu.Lock()
				n.catalog.openErr = fmt.Errorf("fake: %w", store.ErrShardTooLarge)
				n.catalog.mu.Unlock()
			}
			p := n.dial()
			p.hello(connector.RoleSchedulerShim, "e1", 100, 1)
			msg := engineMsg("m", "/l/one")
			msg.Namespace.Groups = append([]kv.GroupSpec(nil), msg.Namespace.Groups...)
			c.change(msg)
			p.send(msg)
			p.wantError(c.code)
			p.wantEOF()
			n.catalog.mu.Lock()
			n.catalog.openErr = nil
			n.catalog.mu.Unlock()
			n.register("e1", "m", "/l/one") // nothing of it stays
		})
	}
}

func TestBadSessions(t *testing.T) {
	pipe := func(t *testing.T) int {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		return int(r.Fd())
	}
	for name, c := range map[string]struct {
		say  func(t *testing.T, p *peer)
		code string
	}{
		"version": {func(t *testing.T, p *peer) {
			p.send(&connector.Hello{Type: connector.TypeHello, Protocol: 99, Role: connector.RoleProbe})
		}, connector.CodeVersion},
		"role of the other daemon": {func(t *testing.T, p *peer) {
			p.send(&connector.Hello{Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: connector.RoleWorkerShim})
		}, connector.CodeNotAllowed},
		"no hello": {func(t *testing.T, p *peer) {
			p.send(&connector.Ping{Type: connector.TypePing})
		}, connector.CodeNotAllowed},
		"garbage": {func(t *testing.T, p *peer) {
			_, _ = p.conn.Write([]byte{0, 0, 0, 3, 0xc1, 0xc1, 0xc1})
		}, connector.CodeMalformed},
		"oversized": {func(t *testing.T, p *peer) {
			_, _ = p.conn.Write([]byte{0xff, 0xff, 0xff, 0xff})
		}, connector.CodeMalformed},
		"garbage after hello": {func(t *testing.T, p *peer) {
			p.hello(connector.RoleSchedulerShim, "e", 1, 1)
			_, _ = p.conn.Write([]byte{0, 0, 0, 1, 0xc1})
		}, connector.CodeMalformed},
		"a descriptor nobody asked for": {func(t *testing.T, p *peer) {
			p.hello(connector.RoleSchedulerShim, "e", 1, 1)
			p.send(&connector.Ping{Type: connector.TypePing}, pipe(t))
		}, connector.CodeMalformed},
		"a job": {func(t *testing.T, p *peer) {
			p.hello(connector.RoleSchedulerShim, "e", 1, 1)
			p.send(&connector.Cancel{Type: connector.TypeCancel, Jobs: []uint64{1}})
		}, connector.CodeNotAllowed},
		"a second engine": {func(t *testing.T, p *peer) {
			p.hello(connector.RoleSchedulerShim, "e", 1, 1)
			p.send(engineMsg("m", "/l/x"))
			receive[connector.Registered](p)
			p.send(engineMsg("m", "/l/y"))
		}, connector.CodeNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			p := n.dial()
			c.say(t, p)
			p.wantError(c.code)
			p.wantEOF()
			n.dial().hello(connector.RoleProbe, "", 1, 0) // the server lives
		})
	}
}

func TestStoreClientsAreHandedOn(t *testing.T) {
	n := newNode(t, func(cfg *Config) {
		cfg.StoreClient = func(_ context.Context, s *Session) error {
			if err := s.Send(&connector.Segments{Type: connector.TypeSegments}); err != nil {
				return err
			}
			_, err := s.Receive()
			return err
		}
	})
	p := n.dial()
	p.hello(connector.RoleStoreClient, "", 1, 0)
	receive[connector.Segments](p)
	n.waitBusy(1)
	_ = p.conn.Close()
	n.waitBusy(0)
}

func TestTooManySessions(t *testing.T) {
	n := newNode(t, nil)
	for range maxSessions {
		n.dial().hello(connector.RoleProbe, "", 1, 0)
	}
	p := n.dial()
	p.wantError(connector.CodeUnavailable)
	p.wantEOF()
}

func TestStopEndsSessions(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	silent := n.dial() // has not said hello
	n.stop()
	p.wantEOF()
	if _, err := silent.read(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the silent session got %v, want its end", err)
	}
}

// A store client's call that was meant for a daemon before must not be taken for
// one of a session with this one.
func TestSessionNumbersDoNotRepeatAcrossDaemons(t *testing.T) {
	var numbers [2]uint64
	for i := range numbers {
		s, err := New(Config{}).admit(nil)
		if err != nil {
			t.Fatal(err)
		}
		numbers[i] = s.Number
	}
	if numbers[0] == numbers[1] {
		t.Errorf("the first session of two daemons has the number %d", numbers[0])
	}
}
