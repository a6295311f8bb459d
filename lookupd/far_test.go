package lookupd

import (
	"bytes"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// knownCluster is a cluster that is known to have everything, and brings nothing.
type knownCluster struct{ embedded.Cluster }

func (knownCluster) Open(*kv.NamespaceSpec, bool)         {}
func (knownCluster) Takes([32]byte) bool                  { return true }
func (knownCluster) Era() uint8                           { return 1 }
func (knownCluster) Offers(*disk.Key) (disk.Found, bool)  { return disk.Found{}, true }
func (knownCluster) CanFetch() bool                       { return false }
func (knownCluster) Glance([32]byte) embedded.Glance      { return knownCluster{} }
func (knownCluster) Exists(uint32, *kv.Hash) kv.Existence { return kv.Present }
func (knownCluster) Ahead(_ uint32, _ kv.HashBlob, _ int, answers []kv.Existence) {
	for i := range answers {
		answers[i] = kv.Present
	}
}

// newFarChainRig is newChainRigOf over such a cluster.
func newFarChainRig(tb testing.TB, storeBytes uint64) *chainRig {
	s := spec("m")
	s.HashBytes = 32
	r := newChainRigOf(tb, &s, nil, storeBytes)
	r.catalog.SetCluster(knownCluster{}, false)
	return r
}

// TestChainsKnownInTheCluster: what comes before a chunk is not known of those that the
// cluster has. All hashes are asked for then, at once.
func TestChainsKnownInTheCluster(t *testing.T) {
	r := newFarChainRig(t, 32<<20)
	hashes := chainOf(32, branch(1000, 0, 1)...)
	got := r.ask(chainStride, 16_001, hashes, "r")
	if hit, _, err := wire.ParseHit(got.hit); err != nil || hit != 16_000 {
		t.Errorf("a hit of %d, %v", hit, err)
	}
	if far := wire.AppendTier(nil, tierNumbers[store.TierRemote], 16_000); !bytes.HasSuffix(got.status, far) {
		t.Errorf("%x does not say that all is far away", got.status)
	}
	r.wantAsked(wire.TagLookup3, wire.TagLookup2)
}

// BenchmarkFarLookup answers a question for 8,192 chunks that are known to be in a
// cluster: all that lookupd does but the cluster's own index, the socket and the lease.
func BenchmarkFarLookup(b *testing.B) {
	r := newFarChainRig(b, 256<<20)
	hashes := chainOf(32, branch(8192, 0, 1)...)
	frames := wire.EncodeLookup2(8192*16+1, 32, hashes, "r", 1)
	b.ReportAllocs()
	for b.Loop() {
		if hit, _, err := wire.ParseHit(r.h.answer(frames)[0]); err != nil || hit != 8192*16 {
			b.Fatalf("a hit of %d, %v", hit, err)
		}
	}
}
