package embedded

import (
	"math/rand"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// wrongParent makes an item claim a predecessor that it can't have: itself or,
// with a hash of another namespace's, a chunk of that one.
func wrongParent(it *store.PutItem, own, other store.NamespaceID, foreign *kv.Hash) {
	it.Depth, it.Parent = 1, it.Hash
	if foreign != nil {
		le.PutUint64(it.Parent[:], keyDigest(other, it.Group, foreign)^scopeDigest(own, it.Group))
	}
}

// TestWrongParents: what a put says of its predecessor does not break the lists
// of the owners, and their quotas are kept.
func TestWrongParents(t *testing.T) {
	const seeds, puts, hashes = 20, 400, 200
	for seed := range seeds {
		random := rand.New(rand.NewSource(int64(seed)))
		w := newWorld(t, 8<<20)
		s := w.open(1, 1, 100, Declaration{})
		spaces := []store.Namespace{w.namespace(testSpec("a", 4<<10, 1)), w.namespace(testSpec("b", 4<<10, 1))}
		for i, ns := range spaces {
			if err := w.m.SetQuota(Owner{Namespace: ns.ID}, uint64(20+20*i)*4<<10); err != nil {
				t.Fatal(err)
			}
		}
		for put := range puts {
			i := random.Intn(2)
			it := store.PutItem{Hash: testHash(random.Intn(hashes))}
			switch foreign := testHash(random.Intn(hashes)); random.Intn(6) {
			case 0:
				wrongParent(&it, spaces[i].ID, 0, nil)
			case 1:
				wrongParent(&it, spaces[i].ID, spaces[1-i].ID, &foreign)
			}
			grants, err := w.m.PutStart(s, spaces[i], []store.PutItem{it})
			if err != nil {
				t.Fatal(err)
			}
			switch grants[0].Status {
			case store.PutGranted:
				if done, err := w.m.PutEnd(s, []store.PutCommit{{Ticket: grants[0].Ticket}}); err != nil || !done[0] {
					t.Fatalf("seed %d, put %d: %v, %v", seed, put, done, err)
				}
			case store.PutExists:
			default:
				t.Fatalf("seed %d, put %d: %v", seed, put, grants[0].Status)
			}
		}
		w.m.validate(t)
	}
}
