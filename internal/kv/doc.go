// Package kv holds the value types that every other package speaks: block
// hashes, KV-cache groups, namespaces, shards and the answers a store gives
// about a chunk. It is pure: no I/O, no clock, nothing from outside the
// standard library.
//
// # Vocabulary
//
// A block hash is the chained digest of one hash block of tokens, as the engine
// computed it; we treat it as opaque bytes. A chunk is one (KV-cache group,
// chunk hash) of a namespace, the chunk hash being the hash of the last hash
// block that the group's block covers. A shard is the part of a chunk that one
// rank holds. A chunk can be loaded only when every shard is there.
package kv
