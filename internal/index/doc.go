// Package index is the table from a chunk's key to its record number: chains of
// record numbers, 4 bytes a bucket and 4 a record, no pointers for the garbage
// collector to follow, memory fixed at creation.
//
// The table holds only seven bits of the key with each number. Whether a record
// really is the key's is for the caller to say, who has the whole key in the
// record: see Table.Find.
//
// # Concurrency
//
// Any number of readers look while one writer changes the table. No reader waits
// for the writer, not even for one that has been put to sleep in the middle of a
// change, and no lookup misses a key that was in the table all the while, or
// finds one that never was.
//
// A chain is changed by a single store: of its head when a record is inserted,
// of the link to a record when that is removed. A removed record keeps its own
// link, so that a reader that stands on it goes on where it would have. What is
// left is a record that is removed and inserted again, with another key, while a
// reader stands on it: its link then leads the reader into another chain. So
// every removal is counted, before the record can be inserted again, in a
// counter that its chain shares with some others, and a reader looks at the
// counter before and after. If it is the same, no record of the chain was
// removed meanwhile: the reader has seen the chain from its head to its end, and
// what isKey read of a record was that record's. If not, it looks again, which
// only as many removals as there are looks can bring about.
//
// A reader that guesses a record's number needs no chain: see Table.Departures.
//
// Tried and not taken: open addressing, whose removal has to shift entries back
// or to leave tombstones. Shifting needs a reader to wait for the end of the
// shift (a sequence count that is odd meanwhile), which is blocking by another
// name when the writer loses its processor; tombstones need to be swept by a
// rebuild, which is not fixed memory.
package index
