package lookupd

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

// diskCatalog has every chunk, those from a place on on the disk.
type diskCatalog struct {
	constCatalog
	disk map[kv.Hash]bool
}

func (c diskCatalog) View(store.NamespaceID) View { return c }

func (c diskCatalog) Grant(store.NamespaceID, store.Lease, []store.ChunkKey, time.Duration) {}

func (c diskCatalog) Slower() bool { return len(c.disk) > 0 }
func (c diskCatalog) TierOf(_ int, hash kv.Hash) store.Tier {
	if c.disk[hash] {
		return store.TierDisk
	}
	return store.TierHost
}

// TestTiersInTheAnswer: an engine is told which tokens come from the disk, an
// in-tree client and one that hits memory alone are told nothing.
func TestTiersInTheAnswer(t *testing.T) {
	h := newBareHandler(t)
	blob := prefix(1, 8)
	catalog := diskCatalog{disk: map[kv.Hash]bool{}}
	h.catalog = catalog
	ask := wire.EncodeLookup2(8*16+1, 16, blob, "r", 5)
	status := func() []byte {
		t.Helper()
		reply := h.handle(ask)
		if hit, _, err := wire.ParseHit(reply[0]); err != nil || hit != 128 {
			t.Fatalf("hit %d, %v", hit, err)
		}
		if seq, _, err := wire.ParseStatus(reply[1]); err != nil || seq != 5 {
			t.Fatalf("sequence %d, %v", seq, err)
		}
		return bytes.Clone(reply[1])
	}
	if b := status(); len(b) != 9 {
		t.Errorf("from memory alone: %x", b)
	}
	for i := 5; i < 8; i++ {
		catalog.disk[kv.Hash(append(bytes.Clone(blob[i*16:(i+1)*16]), make([]byte, 16)...))] = true
	}
	want := wire.AppendTier(wire.AppendTier(nil, 1, 80), 2, 48)
	if b := status(); !bytes.Equal(b[9:], want) {
		t.Errorf("got %x, want %x", b[9:], want)
	}
	if reply := h.handle(wire.EncodeLookup(8*16+1, 16, blob)); len(reply) != 1 {
		t.Errorf("an in-tree client got %d frames", len(reply))
	}
}

// lastingCatalog has every chunk, and chunks with a deadline or none.
type lastingCatalog struct {
	diskCatalog
	lasting bool
}

func (c lastingCatalog) View(store.NamespaceID) View { return c }

func (c lastingCatalog) Lasting() bool { return c.lasting }

// TestLastingInTheAnswer: an engine is told that it need not offer again what is in
// memory for good, and of nothing else.
func TestLastingInTheAnswer(t *testing.T) {
	blob := prefix(1, 8)
	onDisk := map[kv.Hash]bool{kv.Hash(append(bytes.Clone(blob[:16]), make([]byte, 16)...)): true}
	for name, c := range map[string]struct {
		catalog Catalog
		want    byte
	}{
		"without deadlines":            {lastingCatalog{lasting: true}, wire.FlagLasting},
		"with deadlines":               {lastingCatalog{}, 0},
		"of the disk":                  {lastingCatalog{diskCatalog{disk: onDisk}, true}, 0},
		"of a store without deadlines": {diskCatalog{}, 0},
	} {
		h := newBareHandler(t)
		h.catalog = c.catalog
		reply := h.handle(wire.EncodeLookup2(8*16+1, 16, blob, "r", 5))
		if _, flags, err := wire.ParseStatus(reply[1]); err != nil || flags != c.want {
			t.Errorf("%s: flags %b, %v; want %b", name, flags, err, c.want)
		}
	}
}

// TestRuns: the runs have the tiers of the units, and together the hit's tokens.
func TestRuns(t *testing.T) {
	const host, disk = store.TierHost, store.TierDisk
	alternating := make([]store.Tier, 40)
	for i := range alternating {
		alternating[i] = store.Tier(i % 2)
	}
	for name, c := range map[string]struct {
		units []store.Tier
		hit   int
		want  [][2]int
	}{
		"nothing":     {nil, 0, nil},
		"memory":      {[]store.Tier{host, host}, 32, [][2]int{{1, 32}}},
		"disk behind": {[]store.Tier{host, disk, disk}, 48, [][2]int{{1, 16}, {2, 32}}},
		"part":        {[]store.Tier{disk, host, disk}, 40, [][2]int{{2, 16}, {1, 16}, {2, 8}}},
		"many":        {alternating, 640, nil},
	} {
		b := appendRuns(nil, c.units, 16, c.hit)
		var got [][2]int
		sum := 0
		for ; len(b) >= 5; b = b[5:] {
			got = append(got, [2]int{int(b[0]), int(binary.BigEndian.Uint32(b[1:]))})
			sum += got[len(got)-1][1]
		}
		if sum != c.hit || len(b) != 0 || len(got) > maxRuns {
			t.Errorf("%s: %v sums to %d", name, got, sum)
		}
		if c.want != nil && len(got) == len(c.want) {
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("%s: got %v, want %v", name, got, c.want)
				}
			}
		} else if c.want != nil || name == "many" && (len(got) != maxRuns || got[maxRuns-1] != [2]int{2, 25 * 16}) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
