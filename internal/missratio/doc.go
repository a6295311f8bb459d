// Package missratio estimates, while a store runs, which share of the chunks
// asked for it would find with less or more memory: the miss-ratio curve of the
// eviction policy that is in force.
//
// It samples in space: of all keys those whose digest is below a threshold, and
// of those every use. A store scaled down by the same factor, run by the same
// policy, then has about the hits of the whole (Waldspurger et al., SHARDS, FAST
// 2015). One such small store is kept for each multiple of the memory.
//
// A Tap stands on the lookup path. It compares eight bytes a key, and copies
// what passes. A Curve takes from the tap what it gathered, elsewhere and later:
// there is no clock, no goroutine and no I/O here.
//
// Memory is bounded: see Options.Records.
package missratio
