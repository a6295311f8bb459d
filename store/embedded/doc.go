// Package embedded is the node's own chunk store: one shared-memory segment, of
// which mooncake-lookupd is the master and every worker a client that maps it.
//
// # Segment
//
// The segment describes itself, so that a master that was killed can be
// replaced without losing what is cached:
//
//	header | sessions | namespaces | salt tags | slab table | records | slot table | data
//
// The data area is cut into slabs of one size; a slab belongs to one size class
// at a time and is cut into slots of that size. A record is a chunk: hash, parent,
// namespace, group, depth, state, salt tag, pins, expiry, and the first of its
// slots. The slots of a chunk form a list through the slot table, which holds
// each shard's number and checksum; the last names the record. The master alone
// writes the tables; workers write only the bytes of slots that were granted to
// them. Records are words in the machine's byte order, all else is little-endian.
//
// A record counts only if its CRC fits, which covers its slots' entries too, and
// becomes valid by its last word, written after its bytes and slots are final: a
// master that dies at any instant leaves each chunk whole or absent. The bytes
// themselves carry a CRC-32C that the loading worker checks, so a mistake here
// costs a miss and not a token.
//
// Tables take memory as they fill: the record table in steps, a slab's part of
// the slot table when the slab takes up a size. A chunk costs 64 bytes of record
// and 8 a shard there, and some 25 in the master's own memory, index included and the eviction policy's
// not (docs/eviction.md).
//
// # Lookups
//
// Lookups take no lock and wait for no writer: see View, and package index.
//
// # Lifecycle of a chunk
//
// One table (State, Event): a chunk is creating while puts are open and no shard
// has arrived, storing with some shards, active with all, migrating while it is
// copied elsewhere, expired when its time is up, and evicting while its slots are
// freed and somebody still knows its record number. A reset is a new generation of
// the namespace: its chunks are found no more from then on, and freed behind that. Resident chunks are evicted in the order of one policy, but not while one
// of their slots is read (reference), a lookup promised them (lease), or a put of
// theirs is open. Softly pinned ones go last; those that are pinned hard are
// unknown to the policy, stay, and have a bounded share of the memory. Owners, a
// namespace or a salt tag, may have quotas, which cost themselves first, in an
// order of their own (ownerOrder).
//
// # The lock
//
// What has many steps is done in parts of some hundred or thousand, and checks anew
// at each what it relies on: calls with many items, resets, removals, lowered quotas
// and sweeps. Not in parts are the release of one request's lease, the move or
// the drop of a run of slabs with all its chunks, and the end of a client with all
// its puts and reads.
//
// Times are seconds of the segment's own clock, which only goes forward
// (storeClock).
//
// # Memory between sizes
//
// Slots of a size are cut from slabs, large ones from runs of a few slabs, so that
// little is left over. A size that drops young chunks takes slabs whose chunks
// nobody has used for longer (rebalance.go); what was used lately moves first, and
// nearly empty slabs are emptied by moving (compact.go). Nothing moves while it is
// read, leased, pinned hard or written.
//
// # Memory on NUMA nodes
//
// A new segment's slabs are divided between the machine's NUMA nodes and bound
// before their memory is allocated (nodes.go); the slab table says which is where,
// so that a master that adopts the segment knows. A put says near which node it
// is: it gets a slot there, then elsewhere, before anything is evicted (homes.go).
// A run of slabs is on one node, and what moves stays on its node as long as there
// is room.
package embedded
