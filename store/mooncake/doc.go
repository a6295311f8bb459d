// Package mooncake is a chunk store over a Mooncake Store cluster: the second
// implementation of store.Store, for engines of many machines.
//
// Mooncake Store is the engine. It is reached through the small interface Engine:
// calls by key and range of a memory that the engine has registered. Store builds
// the keys, keeps the staging memory, and says what an answer means. Engines are
// a process of ours from Mooncake's wheel (package sideproc) and the fake of
// package mooncaketest; all of them show the behaviour of mooncaketest.TestEngine.
//
// # Objects
//
// An object is one shard, its bytes those that the in-tree connector
// concatenates, as one contiguous range: a transfer costs a slice for each range.
// There is no header and no checksum in it, or an engine with the in-tree
// connector could not read it. Keys are the
// in-tree connector's, byte for byte, where the namespace says so (compat_keys),
// else ours, which begin with the namespace's digest.
//
// # What an answer means
//
// Every failure of one key is a miss: it is gone (-704), not complete yet (-703),
// its lease ran out during the transfer so that the bytes may be torn (-707), of
// another length, or the transfer failed (-800). A put that found no room (-200)
// is void, and PutStart answers PutNoSpace for a while. When the master does not
// answer (-900 and its like) the calls fail with store.ErrUnavailable, at once and
// without asking until a question in between has been answered: a put to a dead
// master takes seconds to fail.
//
// # Ranges
//
// INVARIANT: a staging range is given out once at a time, and taken back only when
// the engine does not touch it any more: a transfer that Mooncake gave up, and may
// go on with, ends with the engine's process. A caller whose context is done is
// answered at once; its call goes on, and ends the ranges.
//
// # Removal
//
// The cluster belongs to others too. What is removed is named: keys, or a
// namespace by the beginning of its keys. There is no call that removes all, and
// nothing that has a lease is removed: somebody may be reading it. What could not be
// removed, for a lease or an outage, is denied until it is: see owed.
package mooncake
