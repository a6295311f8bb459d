package lookupd

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
)

// asker is an engine's end of a lookup channel.
type asker struct {
	t        *testing.T
	conn     net.Conn
	messages *connector.FrameReader
}

// openChannel sends one end of a socket pair of the kind to lookupd.
func (p *peer) openChannel(kind int) *asker {
	p.t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.send(&connector.LookupChannel{Type: connector.TypeLookupChannel, FDs: 1}, pair[1])
	_ = syscall.Close(pair[1])
	file := os.NewFile(uintptr(pair[0]), "channel")
	conn, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	return &asker{p.t, conn, connector.NewFrameReader(conn)}
}

func (a *asker) send(requests ...[][]byte) {
	a.t.Helper()
	var out []byte
	for _, frames := range requests {
		out = wire.AppendMessage(out, frames)
	}
	if _, err := a.conn.Write(out); err != nil {
		a.t.Fatal(err)
	}
}

func (a *asker) receive() [][]byte {
	a.t.Helper()
	message, err := a.messages.Next()
	if err != nil {
		a.t.Fatal(err)
	}
	frames, err := wire.SplitMessage(nil, message)
	if err != nil {
		a.t.Fatal(err)
	}
	return frames
}

func (a *asker) ask(frames [][]byte) [][]byte {
	a.t.Helper()
	a.send(frames)
	return a.receive()
}

func (a *asker) wantEOF() {
	a.t.Helper()
	// What we sent and nobody read makes a reset of it.
	if message, err := a.messages.Next(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		a.t.Errorf("got %x, %v, want the end of the channel", message, err)
	}
}

func TestAChannelAnswersAsTheSocketDoes(t *testing.T) {
	n := newNode(t, nil)
	a := n.register("e1", "m", "/l/one").openChannel(syscall.SOCK_STREAM)
	blob := prefix(1, 20_000)
	n.store(0, blob, 0, 9000, kv.Present)
	n.store(0, blob, 9000, 9001, kv.Loading)
	reset := [][]byte{[]byte(wire.TagReset)}
	for _, frames := range [][][]byte{
		wire.EncodeLookup(1000, 16, blob[:16*62]),
		wire.EncodeLookup2(1000, 16, blob[:16*62], "r", 7),
		wire.EncodeLookup2(320_000, 16, blob, "long", 1<<63), // longer than either buffer
		wire.EncodeLookup(0, 0, nil),
		wire.EncodeLookup(100, 32, blob[:64]),
		{[]byte(wire.TagPing)}, {[]byte("evict")}, {}, {{}}, {[]byte(wire.TagPing), {}},
		reset, wire.EncodeLookup2(1000, 16, blob[:16*62], "r", 7), reset,
	} {
		if string(first(frames)) == wire.TagReset {
			n.catalog.resetErr = nil
		}
		want := n.ask("/l/one", frames)
		got := a.ask(frames)
		if len(got) != len(want) {
			t.Fatalf("%.60q is answered %x, on the socket %x", frames, got, want)
		}
		for i := range want {
			if string(got[i]) != string(want[i]) {
				t.Errorf("%.60q is answered %x, on the socket %x", frames, got, want)
			}
		}
	}
	if got := n.server.Stats().Total; got.Pings != 2 || got.Resets != 4 || got.Errors[ReasonMalformed] != 4 {
		t.Errorf("both ways count together: %+v", got)
	}
}

func first(frames [][]byte) []byte {
	if len(frames) == 0 {
		return nil
	}
	return frames[0]
}

// The engine need not wait for its lease, and a release behind a lookup releases
// it however late it is granted.
func TestALeaseIsGrantedBehindTheAnswer(t *testing.T) {
	n := newNode(t, nil)
	n.catalog.granting = make(chan struct{})
	a := n.register("e1", "m", "/l/one").openChannel(syscall.SOCK_STREAM)
	blob := prefix(1, 8)
	n.store(0, blob, 0, 8, kv.Present)
	a.send(wire.EncodeLookup2(1000, 16, blob, "r1", 1), wire.EncodeRelease([]string{"r1"}), wire.EncodeLookup2(1000, 16, blob, "r2", 2))
	if hit, _, err := wire.ParseHit(a.receive()[0]); hit != 128 || err != nil {
		t.Fatalf("hit is %d, %v", hit, err)
	}
	n.catalog.granting <- struct{}{}
	a.receive()
	n.catalog.granting <- struct{}{}
	a.ask([][]byte{[]byte(wire.TagPing)}) // all of it has been done before
	if n.catalog.lease("leases-m", "r1") != nil || len(n.catalog.lease("leases-m", "r2")) != 8 {
		t.Errorf("leases are %v, want r2's", n.catalog.leases)
	}
}

// What is shown to the sampler has no answer on a channel, and changes nothing.
func TestSeenHasNoAnswer(t *testing.T) {
	n := newNode(t, nil)
	a := n.register("e1", "m", "/l/one").openChannel(syscall.SOCK_STREAM)
	a.send(wire.EncodeSeen(16, prefix(1, 8)), wire.EncodeSeen(8, prefix(1, 8)), [][]byte{[]byte(wire.TagPing)})
	if got := a.receive(); !isStatus(got, wire.OK) {
		t.Errorf("answered %x", got)
	}
	if got := n.server.Stats().Total; got.Errors[ReasonHashLength] != 1 || got.Lookups != 0 {
		t.Errorf("counted %+v", got)
	}
}

func TestANewChannelEndsTheOneBefore(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	before := p.openChannel(syscall.SOCK_STREAM)
	before.ask([][]byte{[]byte(wire.TagPing)})
	a := p.openChannel(syscall.SOCK_STREAM)
	a.ask([][]byte{[]byte(wire.TagPing)})
	before.wantEOF()
	n.catalog.Grant(0, lease("leases-m", "r"), nil, 0)
	n.waitBusy(1)
	_ = p.conn.Close()
	n.waitBusy(0)
	a.wantEOF()
}

func TestABrokenChannelLeavesTheSession(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	for _, junk := range []string{"\xff\xff\xff\xff", "\x00\x00\x00\x05\x00\x00\x00\x09x", "\x00\x00\x00\x05half"} {
		a := p.openChannel(syscall.SOCK_STREAM)
		if _, err := a.conn.Write([]byte(junk)); err != nil {
			t.Fatal(err)
		}
		if sock, ok := a.conn.(*net.UnixConn); ok {
			_ = sock.CloseWrite()
		}
		a.wantEOF()
	}
	if reply := p.openChannel(syscall.SOCK_STREAM).ask([][]byte{[]byte(wire.TagPing)}); !isStatus(reply, wire.OK) {
		t.Errorf("a ping is answered %x", reply)
	}
	p.send(&connector.Ping{Type: connector.TypePing, Seq: 3})
	receive[connector.Pong](p)
}

func TestWhatIsNoChannelIsRefused(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	p.openChannel(syscall.SOCK_DGRAM)
	p.wantError(connector.CodeBadDescriptor)
	p.wantEOF()
	p = n.register("e2", "m", "/l/two")
	p.send(&connector.LookupChannel{Type: connector.TypeLookupChannel, FDs: 1}) // and sends none
	p.wantError(connector.CodeMalformed)
	p = n.dial()
	p.hello(connector.RoleSchedulerShim, "e3", 100, 1)
	a := p.openChannel(syscall.SOCK_STREAM) // before it has registered
	p.wantError(connector.CodeNotAllowed)
	a.wantEOF()
}

// A lookup that is stuck must be seen by the service manager's watchdog; an engine
// that asks nothing must not.
func TestAStuckLookupStopsThePulse(t *testing.T) {
	var rounds atomic.Int64
	group := pulse.New(func() { rounds.Add(1) })
	other := group.Join()
	n := newNode(t, func(c *Config) { c.Pulse = group })
	n.catalog.granting, n.catalog.waits = make(chan struct{}), make(chan struct{})
	a := n.register("e1", "m", "/l/one").openChannel(syscall.SOCK_STREAM)
	blob := prefix(1, 8)
	n.store(0, blob, 0, 8, kv.Present)
	a.ask([][]byte{[]byte(wire.TagPing)})
	a.ask(wire.EncodeLookup2(1000, 16, blob, "r", 1))
	<-n.catalog.waits // it is stuck behind the answer
	other.Beat()
	before := rounds.Load()
	other.Beat()
	other.Beat()
	if got := rounds.Load(); got != before {
		t.Errorf("%d rounds are complete although a lookup is stuck", got-before)
	}
	close(n.catalog.granting)
	a.ask([][]byte{[]byte(wire.TagPing)})
	for deadline := time.Now().Add(patience); rounds.Load() == before; time.Sleep(time.Millisecond) {
		if other.Beat(); time.Now().After(deadline) {
			t.Fatal("an idle channel stops the pulse")
		}
	}
}
