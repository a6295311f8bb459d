// Package level is a cluster as the level below a node's own store: what memory
// has becomes objects of the cluster, and what a request needs of it comes into
// memory. It implements embedded.Cluster over a mooncake.Client.
//
// # What is known
//
// Only the cluster knows what is in it, and a question takes a way there and back.
// So lookups are answered from what is known (known): answers that are younger
// than half of the master's lease, this node's own puts as long, and absence for a
// second. What is not known is Unknown, and whoever wants to know calls Ask. A
// cluster that does not answer has nothing.
//
// A master may publish events of what is stored and removed (Hear). What they tell is known
// (told) for longer than an answer, and is a hint as that is: see told for what is done with
// a master that does not tell all.
//
// # Puts and gets
//
// A chunk is all of its shards: it counts as stored when all are, and arrives when
// all do. Both are done from and to the store's slots, without a copy, by a few
// goroutines that take what waits in batches. What waits is bounded; a chunk
// beyond is refused, and counted by the reason.
//
// # What can be verified
//
// An object has no checksum: the in-tree connector's layout has no room for one.
// Bytes are compared with the worker's checksum before they leave, an object
// counts only with its whole length and Mooncake's word for it, and the sum of what
// arrived is what loads are verified with. What changes in between is TCP's and
// RDMA's to notice, and the storage node's.
//
// # Resets
//
// A reset makes all of the namespace unusable that was stored before. Whether it is
// removed from the cluster, where others use it, is the operator's to say
// (Options.ResetCluster). Where it is not, the node leaves the cluster alone for
// this namespace from then on: what is there can't be told from what is new. A
// namespace that is opened soiled was reset in another life of the segment, and the
// same holds for it.
package level
