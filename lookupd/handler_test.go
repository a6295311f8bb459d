package lookupd

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

func lease(engine, request string) store.Lease { return store.Lease{Engine: engine, Request: request} }

// prefix makes n hashes of 16 bytes.
func prefix(seed byte, n int) []byte {
	var blob []byte
	for i := range n {
		blob = append(blob, bytes.Repeat([]byte{seed}, 14)...)
		blob = append(blob, byte(i>>8), byte(i))
	}
	return blob
}

func (n *node) store(ns store.NamespaceID, blob []byte, from, to int, e kv.Existence) {
	n.t.Helper()
	hashes, err := kv.NewHashBlob(blob, 16)
	if err != nil {
		n.t.Fatal(err)
	}
	for i := from; i < to; i++ {
		n.catalog.put(ns, 0, hashes.At(i), e)
	}
}

func (n *node) ask(path string, frames [][]byte) [][]byte {
	n.t.Helper()
	e := n.sockets.at(path)
	if e == nil {
		n.t.Fatalf("%s is not bound", path)
	}
	return e.handle(frames)
}

func (n *node) wantHit(path string, frames [][]byte, want int) {
	n.t.Helper()
	reply := n.ask(path, frames)
	hit, tails, err := wire.ParseHit(reply[0])
	if err != nil || hit != want {
		n.t.Errorf("hit is %d, %v (%x), want %d", hit, err, reply, want)
		return
	}
	if want > 0 && (len(tails) != 1 || tails[0] != wire.Boundary{Group: 0, Tokens: want}) {
		n.t.Errorf("tails of a hit of %d are %v", want, tails)
	}
}

func TestLookup(t *testing.T) {
	n := newNode(t, nil)
	n.register("e1", "m", "/l/one")
	blob := prefix(1, 8)
	n.store(0, blob, 0, 8, kv.Present)
	lookup := func(tokens, hashes int) [][]byte { return wire.EncodeLookup(tokens, 16, blob[:hashes*16]) }
	n.wantHit("/l/one", lookup(1000, 8), 128)
	n.wantHit("/l/one", lookup(100, 6), 96)
	n.wantHit("/l/one", lookup(128, 8), 112) // the last token is computed
	n.wantHit("/l/one", lookup(0, 0), 0)
	n.wantHit("/l/one", lookup(16, 1), 0)
	n.wantHit("/l/one", wire.EncodeLookup(1000, 16, prefix(2, 8)), 0)
	n.store(0, blob, 3, 4, kv.Absent)
	n.wantHit("/l/one", lookup(1000, 8), 48)
	got := n.server.Stats().Total
	if got.Lookups != 7 || got.Misses != 3 || n.took.Load() != 7 || got.HitTokens != 128+96+112+48 || got.QueryTokens != 1000*3+100+128+16 {
		t.Errorf("counters are %+v", got)
	}
	if len(n.catalog.leases) != 0 {
		t.Errorf("an in-tree lookup was granted %v", n.catalog.leases)
	}
}

func TestLookup2GrantsALease(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	blob := prefix(1, 8)
	n.store(0, blob, 0, 5, kv.Present)
	ask := wire.EncodeLookup2(1000, 16, blob, "req-1", 42)
	n.wantHit("/l/one", ask, 80)
	reply := n.ask("/l/one", ask)
	if seq, flags, err := wire.ParseStatus(reply[1]); len(reply) != 2 || seq != 42 || flags != 0 || err != nil {
		t.Errorf("status is %d, %d, %v", seq, flags, err)
	}
	hashes, _ := kv.NewHashBlob(blob, 16)
	var want []store.ChunkKey
	for i := range 5 {
		want = append(want, store.ChunkKey{Group: 0, Hash: hashes.At(i)})
	}
	if got := n.catalog.lease("leases-m", "req-1"); !slices.Equal(got, want) {
		t.Errorf("leased %v, want the hit's five chunks", got)
	}
	n.wantHit("/l/one", wire.EncodeLookup2(1000, 16, prefix(9, 8), "req-2", 1), 0)
	if n.catalog.lease("leases-m", "req-2") != nil {
		t.Error("a miss was granted a lease")
	}
	n.store(0, blob, 5, 6, kv.Loading)
	reply = n.ask("/l/one", ask)
	if _, flags, err := wire.ParseStatus(reply[1]); flags != wire.FlagPending || err != nil {
		t.Errorf("flags are %d, %v, want pending", flags, err)
	}
	_ = p
}

// The window of a sliding-window group is all that a load needs of it, and all
// that is leased.
func TestLeaseCoversWhatALoadNeeds(t *testing.T) {
	n := newNode(t, nil)
	p := n.dial()
	p.hello(connector.RoleSchedulerShim, "e1", 1, 1)
	msg := engineMsg("m", "/l/one")
	msg.Namespace.Groups = append(msg.Namespace.Groups, kv.GroupSpec{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 32, ShardBytes: 4096, Shards: 1})
	p.send(msg)
	receive[connector.Registered](p)
	blob := prefix(1, 10)
	hashes, _ := kv.NewHashBlob(blob, 16)
	for i := range 10 {
		n.catalog.put(0, 0, hashes.At(i), kv.Present)
		n.catalog.put(0, 1, hashes.At(i), kv.Present)
	}
	reply := n.ask("/l/one", wire.EncodeLookup2(1000, 16, blob, "r", 1))
	if hit, _, err := wire.ParseHit(reply[0]); hit != 160 || err != nil {
		t.Fatalf("hit is %d, %v", hit, err)
	}
	var byGroup [2][]store.ChunkKey
	for _, c := range n.catalog.lease("leases-m", "r") {
		byGroup[c.Group] = append(byGroup[c.Group], c)
	}
	if len(byGroup[0]) != 10 || len(byGroup[1]) < 2 || len(byGroup[1]) > 3 || !slices.Contains(byGroup[1], store.ChunkKey{Group: 1, Hash: hashes.At(9)}) {
		t.Errorf("leased %d and %d chunks, want 10 and the window's", len(byGroup[0]), len(byGroup[1]))
	}
}

func TestNamespacesAreSeparate(t *testing.T) {
	n := newNode(t, nil)
	n.register("e1", "m", "/l/one")
	n.register("e2", "other", "/l/two")
	blob := prefix(1, 8)
	n.store(0, blob, 0, 8, kv.Present)
	n.store(1, blob, 0, 4, kv.Present)
	ask := wire.EncodeLookup(1000, 16, blob)
	n.wantHit("/l/one", ask, 128)
	n.wantHit("/l/two", ask, 64)
	if reply := n.ask("/l/one", [][]byte{[]byte("reset")}); !isStatus(reply, wire.OK) {
		t.Errorf("reset is answered %x", reply)
	}
	n.wantHit("/l/one", ask, 0)
	n.wantHit("/l/two", ask, 64)
}

func isStatus(reply [][]byte, code byte) bool {
	return len(reply) == 1 && bytes.Equal(reply[0], []byte{code})
}

func TestBadRequestsAreAnsweredAndCounted(t *testing.T) {
	n := newNode(t, nil)
	n.register("e1", "m", "/l/one")
	blob := prefix(1, 2)
	n.store(0, blob, 0, 2, kv.Present)
	for _, c := range []struct {
		frames [][]byte
		reason Reason
	}{
		{[][]byte{[]byte("lookup")}, ReasonMalformed},
		{[][]byte{[]byte("reset"), {}}, ReasonMalformed},
		{wire.EncodeLookup(100, 16, blob[:17]), ReasonMalformed},
		{[][]byte{[]byte("evict")}, ReasonUnknownTag},
		{wire.EncodeLookup(100, 32, blob), ReasonHashLength},
	} {
		before := n.server.Stats().Total.Errors[c.reason]
		if reply := n.ask("/l/one", c.frames); !isStatus(reply, wire.Failed) {
			t.Errorf("%.40q is answered %x, want 00", c.frames, reply)
		}
		if got := n.server.Stats().Total.Errors[c.reason]; got != before+1 {
			t.Errorf("%.40q is not counted as %v", c.frames, c.reason)
		}
	}
	n.catalog.resetErr = errors.New("no")
	if reply := n.ask("/l/one", [][]byte{[]byte("reset")}); !isStatus(reply, wire.Failed) {
		t.Errorf("a failed reset is answered %x", reply)
	}
	if reply := n.ask("/l/one", [][]byte{[]byte("ping")}); !isStatus(reply, wire.OK) {
		t.Errorf("a ping is answered %x", reply)
	}
	n.wantHit("/l/one", wire.EncodeLookup(100, 16, blob), 32)
}

func TestPanicCostsOneAnswer(t *testing.T) {
	n := newNode(t, nil)
	n.register("e1", "m", "/l/one")
	n.register("e2", "other", "/l/two")
	blob := prefix(1, 2)
	n.store(0, blob, 0, 2, kv.Present)
	n.catalog.fault = "broken"
	if reply := n.ask("/l/one", wire.EncodeLookup(100, 16, blob)); !isStatus(reply, wire.Failed) {
		t.Errorf("answered %x, want 00", reply)
	}
	n.catalog.fault = nil
	n.wantHit("/l/one", wire.EncodeLookup(100, 16, blob), 32)
	if got := n.server.Stats().Total.Errors[ReasonPanic]; got != 1 {
		t.Errorf("%d panics are counted, want 1", got)
	}
}

// TestFaultBehindTheAnswerLeavesIt: what goes wrong after a lookup was answered is
// counted, and the answer is the one it was.
func TestFaultBehindTheAnswerLeavesIt(t *testing.T) {
	n := newNode(t, nil)
	n.register("e1", "m", "/l/one")
	blob := prefix(1, 2)
	n.store(0, blob, 0, 2, kv.Present)
	n.catalog.grantFault = "broken"
	n.wantHit("/l/one", wire.EncodeLookup2(100, 16, blob, "r", 1), 32)
	if got := n.server.Stats().Total.Errors[ReasonPanic]; got != 1 {
		t.Errorf("%d panics are counted, want 1", got)
	}
}

func TestCountersOutliveTheirEngine(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	n.wantHit("/l/one", wire.EncodeLookup(100, 16, prefix(1, 2)), 0)
	n.waitBusy(1)
	_ = p.conn.Close()
	n.waitBusy(0)
	if got := n.server.Stats().Total.Lookups; got != 1 {
		t.Errorf("%d lookups are counted, want 1", got)
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range numReasons {
		name := r.String()
		if seen[name] || name == fmt.Sprintf("reason(%d)", int(r)) {
			t.Errorf("reason %d is named %q", int(r), name)
		}
		seen[name] = true
	}
}

// constCatalog has every chunk and no lock, for measuring the handler alone.
type constCatalog struct{ Catalog }

func (constCatalog) View(store.NamespaceID) View      { return constCatalog{} }
func (constCatalog) Exists(int, kv.Hash) kv.Existence { return kv.Present }
func (constCatalog) Close()                           {}
func (constCatalog) Abandon()                         {}

func (constCatalog) Ahead(int, kv.HashBlob, int) (told, present int) { return 0, 0 }

func (constCatalog) Ancestors(int, []byte, int, int, int, int) (found, present int, stray bool) {
	return 0, 0, false
}

func (constCatalog) Reset(store.NamespaceID) error { return nil }

func TestLookupDoesNotAllocate(t *testing.T) {
	h := newBareHandler(t)
	ask := wire.EncodeLookup(16_400, 16, prefix(1, 1024))
	h.handle(ask)
	if got := testing.AllocsPerRun(100, func() { h.handle(ask) }); got != 0 {
		t.Errorf("a lookup allocates %v times", got)
	}
}

func newBareHandler(t testing.TB) *handler {
	t.Helper()
	e := &engine{name: "e", spec: spec("m")}
	e.rules = rulesOf(t, &e.spec)
	e.inquiries = newInquiries(constCatalog{}, e.rules, e.ns.ID, &connector.Engine{})
	t.Cleanup(e.inquiries.close)
	return newHandler(Config{Catalog: constCatalog{}}, e)
}

func BenchmarkLookup(b *testing.B) {
	for _, chunks := range []int{64, 1024, 8192} {
		b.Run(fmt.Sprintf("chunks=%d", chunks), func(b *testing.B) {
			h := newBareHandler(b)
			ask := wire.EncodeLookup(16*chunks+1, 16, prefix(1, chunks))
			b.ReportAllocs()
			for b.Loop() {
				h.handle(ask)
			}
		})
	}
}
