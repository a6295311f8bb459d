package lookupd

import (
	"bytes"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

func (c *fakeCatalog) resetBy(t *testing.T, ns store.NamespaceID, tell func(store.NamespaceID)) {
	t.Helper()
	if err := c.Reset(ns); err != nil {
		t.Fatal(err)
	}
	tell(ns)
}

// Every engine of a namespace hears of its resets, others do not; one that
// registers afterwards begins with the present generation.
func TestEnginesHearOfResets(t *testing.T) {
	n := newNode(t, nil)
	one, two := n.register("e1", "m", "/l/one"), n.register("e2", "m", "/l/two")
	other := n.register("e3", "other", "/l/three")
	for i := range uint64(3) {
		n.catalog.resetBy(t, 0, n.server.NamespaceReset)
		for _, p := range []*peer{one, two} {
			if got := receive[connector.Generation](p).Generation; got != firstGeneration+i+1 {
				t.Errorf("reset %d: told of %#x", i, got)
			}
		}
	}
	other.send(&connector.Ping{Type: connector.TypePing, Seq: 5})
	if got := receive[connector.Pong](other); got.Seq != 5 {
		t.Errorf("%+v", got)
	}
	late := n.dial()
	late.hello(connector.RoleSchedulerShim, "e4", 100, 1)
	late.send(engineMsg("m", "/l/four"))
	if got := receive[connector.Registered](late).Generation; got != firstGeneration+3 {
		t.Errorf("registered at %#x", got)
	}
}

// Resets that an engine does not keep up with become one.
func TestAnEngineThatDoesNotReadHoldsUpNoReset(t *testing.T) {
	n := newNode(t, nil)
	p := n.register("e1", "m", "/l/one")
	const resets = 1000
	for range resets {
		n.catalog.resetBy(t, 0, n.server.NamespaceReset)
	}
	var last uint64
	for last != firstGeneration+resets {
		got := receive[connector.Generation](p).Generation
		if got < last {
			t.Fatalf("%#x after %#x", got, last)
		}
		last = got
	}
}

func TestReset2NamesTheGeneration(t *testing.T) {
	n := newNode(t, nil)
	n.register("e1", "m", "/l/one")
	blob := prefix(1, 8)
	n.store(0, blob, 0, 8, kv.Present)
	reply := n.ask("/l/one", [][]byte{[]byte(wire.TagReset2)})
	if len(reply) != 2 || !bytes.Equal(reply[0], []byte{wire.OK}) || !bytes.Equal(reply[1], wire.AppendGeneration(nil, firstGeneration+1)) {
		t.Errorf("answered %x", reply)
	}
	n.wantHit("/l/one", wire.EncodeLookup(1000, 16, blob), 0)
	if got := n.server.Stats().Total.Resets; got != 1 {
		t.Errorf("%d resets are counted", got)
	}
}
