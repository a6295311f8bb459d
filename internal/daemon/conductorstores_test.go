package daemon

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/enginehash"
	"github.com/mooncake-sidecar/sidecar/conductor/router"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// TestStoresOfANode: a router's prefix is pinned and let go of in a real
// lookupd, under the hashes that vLLM would make of it; what nobody can hash is said to
// have no store.
func TestStoresOfANode(t *testing.T) {
	o := startOperated(t)
	tokens := make([]uint32, 5*16+3)
	p := &router.Prefix{Model: "operated", CacheSalt: "s", BlockTokens: 16}
	for i := range tokens {
		tokens[i] = uint32(i * 31)
		p.Tokens = binary.LittleEndian.AppendUint32(p.Tokens, tokens[i])
	}
	n := newNodeStores(map[string]string{"a": o.dir, "beside": o.dir + "/", "gone": t.TempDir()})
	defer n.close()
	minute := func() time.Duration { return time.Minute }

	// As engines have them: with the seed 0, in a namespace of SHA-256.
	spec := *o.spec
	spec.Model, spec.HashAlgorithm, spec.HashBytes = "/models/operated", enginehash.SHA256CBOR, 32
	ns, err := o.chunks.OpenNamespace(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	hasher, err := enginehash.New(contract.HashProfile{Algorithm: enginehash.SHA256CBOR, Seed: "0"})
	if err != nil {
		t.Fatal(err)
	}
	var items []store.PutItem
	var before []byte
	for i, salt := 0, "s"; i < 4; i, salt = i+1, "" { // the fifth block is not there
		if before, err = hasher.Next(before, tokens[i*16:(i+1)*16], salt); err != nil {
			t.Fatal(err)
		}
		item := store.PutItem{Hash: kv.Hash(before), Depth: uint32(i)}
		if i > 0 {
			item.Parent = items[i-1].Hash
		}
		items = append(items, item)
	}
	grants, err := o.chunks.PutStart(t.Context(), ns, store.PutOptions{}, items)
	if err != nil {
		t.Fatal(err)
	}
	var commits []store.PutCommit
	for _, g := range grants {
		data := o.chunks.Segments()[g.Place.Segment].Data()[g.Place.Offset:][:g.Place.Bytes]
		commits = append(commits, store.PutCommit{Ticket: g.Ticket, Checksum: crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))})
	}
	if _, err := o.chunks.PutEnd(t.Context(), ns, commits); err != nil {
		t.Fatal(err)
	}

	if got, err := n.Pin(t.Context(), "a", p, minute); err != nil || got != 4*16 {
		t.Errorf("%d tokens are pinned, %v; want 64", got, err)
	}
	raw, err := NewOperator(o.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	list, err := raw.ListNamespaces(t.Context(), &adminpb.ListNamespacesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, item := range items {
		all = append(all, item.Hash[:]...)
	}
	// letGo unpins all and says how many blocks were pinned.
	letGo := func() (n int) {
		for _, entry := range list.GetNamespaces() {
			if reply, err := raw.Unpin(t.Context(), &adminpb.UnpinRequest{Keys: &adminpb.Keys{Namespace: entry.GetDigest(), Hashes: all}}); err == nil {
				n += int(reply.GetUnpinned().GetAmount().GetChunks())
			}
		}
		return n
	}
	// Of what others have in common with it nothing is unpinned, whoever shares the store.
	for _, c := range []struct{ keep, left int }{{4*16 + 3, 4}, {2*16 + 15, 2}, {0, 0}} {
		if _, err := n.Pin(t.Context(), "a", p, minute); err != nil {
			t.Error(err)
		}
		if err := n.Unpin(t.Context(), "beside", p, func() int { return c.keep }); err != nil {
			t.Error(err)
		}
		if got := letGo(); got != c.left {
			t.Errorf("%d blocks are pinned where %d tokens were to be kept; want %d", got, c.keep, c.left)
		}
	}
	// Nothing is pinned while it is found out what is to be kept.
	done := make(chan error, 1)
	if err := n.Unpin(t.Context(), "a", p, func() int {
		go func() { _, err := n.Pin(t.Context(), "beside", p, minute); done <- err }()
		time.Sleep(10 * time.Millisecond)
		return 0
	}); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := letGo(); got != 4 {
		t.Errorf("%d blocks are pinned, though they were behind what was let go of", got)
	}
	// Nor is anything unpinned while it is found out for how long, or pinned for no time.
	var unpinning sync.WaitGroup
	if _, err := n.Pin(t.Context(), "a", p, func() time.Duration {
		unpinning.Go(func() {
			if err := n.Unpin(t.Context(), "beside", p, func() int { return 0 }); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		return time.Minute
	}); err != nil {
		t.Error(err)
	}
	unpinning.Wait()
	if got := letGo(); got != 0 {
		t.Errorf("%d blocks are pinned, though they were let go of behind it", got)
	}
	if got, err := n.Pin(t.Context(), "a", p, func() time.Duration { return 0 }); err != nil || got != 0 || letGo() != 0 {
		t.Errorf("%d tokens are pinned for no time, %v", got, err)
	}
	other := *p
	other.CacheSalt = ""
	if got, err := n.Pin(t.Context(), "a", &other, minute); err != nil || got != 0 {
		t.Errorf("%d tokens of another salt are pinned, %v", got, err)
	}
	if err := n.Prefetch(t.Context(), "a", p); !errors.Is(err, router.ErrNoStore) {
		t.Errorf("%v, want that there is nothing slower than memory", err)
	}
	adapter := *p
	adapter.LoRA = "l"
	short := *p
	short.Tokens = short.Tokens[:40]
	for name, c := range map[string]struct {
		instance string
		prefix   *router.Prefix
	}{"another machine's": {"b", p}, "no lookupd": {"gone", p}, "an adapter": {"a", &adapter}, "no whole block": {"a", &short}} {
		if _, err := n.Pin(t.Context(), c.instance, c.prefix, minute); !errors.Is(err, router.ErrNoStore) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
