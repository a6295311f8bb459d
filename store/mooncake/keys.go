package mooncake

import (
	"encoding/hex"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
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
