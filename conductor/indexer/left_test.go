package indexer

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// total is what all streams have counted, those of services that have left as well.
func total(x *Indexer) contract.Status {
	sum := x.Stats().Left
	for _, s := range x.Services() {
		sum.Add(&s)
	}
	return sum
}

// What a service has counted stays counted when it is unregistered, and when it comes back.
func TestCountersOfWhoLeft(t *testing.T) {
	transport := newTransport(t)
	x := newIndexer(t, options(transport))
	for _, instance := range []string{"a", "b"} {
		at := ipcEndpoints(t)
		newEngine(t, transport, at).lose(stored(1, 2, 3), removed(3))
		register(t, x, serviceAt(at, instance, 0))
	}
	expect(t, x, ask(1, 2, 3), row{"a", 0, 4, 4, contract.Complete, false}, row{"b", 0, 4, 4, contract.Complete, false})
	service := x.Services()[0].Service
	for left := uint64(1); left <= 2; left++ {
		was := total(x)
		if err := x.Unregister(t.Context(), service.Key()); err != nil {
			t.Fatal(err)
		}
		// The other one may be asked for what is lost meanwhile.
		if now := total(x); now.Batches != was.Batches || now.Blocks != was.Blocks || now.Replays < was.Replays || was.Batches == 0 || was.Replays == 0 {
			t.Errorf("%+v\nand before it left: %+v", now, was)
		}
		if s := x.Stats(); s.Leavers != left {
			t.Errorf("%d have left, not %d", s.Leavers, left)
		}
		register(t, x, service)
		expect(t, x, ask(1, 2, 3), row{"a", 0, 4, 4, contract.Complete, false}, row{"b", 0, 4, 4, contract.Complete, false})
		if now := total(x); now.Batches <= was.Batches || now.Blocks.Stored <= was.Blocks.Stored {
			t.Errorf("%+v\nand before it came back: %+v", now, was)
		}
	}
}
