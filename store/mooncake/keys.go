package mooncake

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Keyspace is how the chunks of one namespace are named in the cluster.
type Keyspace struct {
	// Prefixes are the beginnings of keys, by group and shard. The hash comes
	// behind, see kv.PoolKey.
	Prefixes [][]string
	// Scope is what all keys of the namespace begin with. With the in-tree
	// connector's keys other engines' may, too: those whose objects they share.
	Scope string
}

// Keys names the chunks of a namespace.
type Keys func(spec *kv.NamespaceSpec) (Keyspace, error)

// NamespaceKeys are the in-tree connector's, byte for byte, where the namespace has
// a key space (compat_keys). Otherwise they begin with the namespace's digest, so
// that no two namespaces have a key in common.
//
// REQUIRES: the spec is valid.
func NamespaceKeys(spec *kv.NamespaceSpec) (Keyspace, error) {
	digest := spec.Digest()
	space := Keyspace{Scope: "mooncake-sidecar@" + hex.EncodeToString(digest[:16]) + "@"}
	prefix := func(group, shard int) string { return fmt.Sprintf("%sshard:%d@group:%d", space.Scope, shard, group) }
	if spec.KeySpace != "" {
		// Behind the name a longer one can't go on.
		space.Scope = spec.KeySpace + "@tp_rank:"
		prefix = spec.KeyPrefix
	}
	for g, group := range spec.Groups {
		prefixes := make([]string, group.Shards)
		for shard := range prefixes {
			prefixes[shard] = prefix(g, shard)
		}
		space.Prefixes = append(space.Prefixes, prefixes)
	}
	if err := space.check(spec); err != nil {
		return Keyspace{}, err
	}
	return space, nil
}

// check refuses what can't be a key.
func (k *Keyspace) check(spec *kv.NamespaceSpec) error {
	for _, prefixes := range k.Prefixes {
		for _, prefix := range prefixes {
			if err := CheckKey(kv.PoolKey(prefix, make([]byte, spec.HashBytes))); err != nil {
				return err
			}
		}
	}
	return CheckPrefix(k.Scope)
}

// splitKey divides an object's key into a prefix and a hash, as kv.PoolKey joins them.
// False: it is no key of a chunk's.
func splitKey(key []byte) (prefix []byte, hash kv.Hash, hashBytes int, ok bool) {
	at := bytes.LastIndexByte(key, '@')
	digits := key[at+1:]
	if at < 0 || len(digits) == 0 || len(digits) > 2*len(hash) || bytes.ContainsAny(digits, "ABCDEF") { // they are written small
		return nil, hash, 0, false
	}
	if hashBytes, err := hex.Decode(hash[:], digits); err == nil {
		return key[:at], hash, hashBytes, true
	}
	return nil, hash, 0, false
}

// named says of which shards of which namespaces a prefix is: with the in-tree
// connector's keys several namespaces may have it in common.
type named map[string][]shardName

type shardName struct {
	ns           *namespace
	group, shard uint32
}

// add adds the prefixes of a namespace.
func (n named) add(ns *namespace) {
	for group, prefixes := range ns.keys.Prefixes {
		for shard, prefix := range prefixes {
			n[prefix] = append(n[prefix], shardName{ns, uint32(group), uint32(shard)})
		}
	}
}

// Named is the shard of a chunk that has a key.
type Named struct {
	Namespace    store.Namespace
	Group, Shard uint32
	Hash         kv.Hash
	// Denied: it is not to be used, see Client.Owe and Client.Soil.
	Denied bool
}

// Named appends the shards that have a key, of the namespaces that are open.
func (c *Client) Named(dst []Named, key []byte) []Named {
	prefix, hash, hashBytes, ok := splitKey(key)
	if !ok {
		return dst
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.named[string(prefix)] {
		if of.ns.spec.HashBytes != hashBytes {
			continue
		}
		chunk := store.ChunkKey{Group: of.group, Hash: hash}
		dst = append(dst, Named{
			Namespace: store.Namespace{ID: of.ns.id, ResetEpoch: of.ns.resets}, Group: of.group, Shard: of.shard, Hash: hash,
			Denied: c.anyDeniedLocked(of.ns, &chunk),
		})
	}
	return dst
}
