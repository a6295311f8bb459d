package mooncake

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

// TestNamed: every key of an open namespace names its shard, of all namespaces that have
// it, and nothing else names one.
func TestNamed(t *testing.T) {
	c := NewClient(ClientOptions{})
	open := func(dtype, keySpace string) store.Namespace {
		spec := storetest.Spec("m", 2)
		spec.Dtype, spec.KeySpace = dtype, keySpace
		n, err := c.OpenNamespace(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	own, one, other := open("a", ""), open("b", "in-tree"), open("c", "in-tree")
	hash := kv.Hash{1, 2, 3, 0xfe}
	for _, test := range []struct {
		of    store.Namespace
		alike []store.Namespace
	}{{own, []store.Namespace{own}}, {one, []store.Namespace{one, other}}} {
		ns := c.namespaces[test.of.ID-1]
		for group, prefixes := range ns.keys.Prefixes {
			for shard := range prefixes {
				key := ns.key(uint32(group), uint32(shard), &hash)
				found := c.Named(nil, []byte(key))
				if len(found) != len(test.alike) {
					t.Fatalf("%s: %+v", key, found)
				}
				for i, n := range found {
					if want := (Named{test.alike[i], uint32(group), uint32(shard), hash, false}); n != want {
						t.Errorf("%s: %+v, want %+v", key, n, want)
					}
				}
				for _, none := range []string{key[:len(key)-2], key[:len(key)-1], key + "00", key[1:], "x" + key, key[:len(key)-2] + "FE", ""} {
					if found := c.Named(nil, []byte(none)); len(found) > 0 {
						t.Errorf("%q: %+v", none, found)
					}
				}
			}
		}
	}
	key := []byte(c.namespaces[own.ID-1].key(0, 1, &hash))
	if !c.Owe(own, 0, &hash) {
		t.Fatal("it was not taken")
	}
	if found := c.Named(nil, key); len(found) != 1 || !found[0].Denied {
		t.Errorf("what is to be removed: %+v", found)
	}
	if err := c.Soil(one); err != nil {
		t.Fatal(err)
	}
	found := c.Named(nil, []byte(c.namespaces[one.ID-1].key(0, 0, &kv.Hash{9})))
	if len(found) != 2 || !found[0].Denied || found[1].Denied {
		t.Errorf("one of two namespaces is soiled: %+v", found)
	}
}

// FuzzSplitKey: what is a key of a chunk's is joined to the same again.
func FuzzSplitKey(f *testing.F) {
	for _, key := range []string{"m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@00ff", "a@b", "@00", "00", "@", "x@0", "x@FF", "x@zz", "x@" + string(make([]byte, 80))} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		prefix, hash, n, ok := splitKey(key)
		if ok && (n == 0 || n > len(hash) || kv.PoolKey(string(prefix), hash[:n]) != string(key)) {
			t.Fatalf("%q is %q and %x", key, prefix, hash[:n])
		}
	})
}
