// Package prefixindex knows which engines, and which stores beside them, hold which
// prefixes: it takes their KV-cache events and answers how many tokens of a prompt each
// of them has. It is pure: streams, replays and restarts are its caller's, who tells it
// by Clear what is no longer known.
//
// # Identity
//
// Engines name a block by a hash of their own, which they may make in different ways.
// The index makes digests of its own, of 64 bits, from the tokens of the events, along
// each prompt: digest = H(digest before, H(tokens, extra keys)), beginning with a root
// of tenant, model, adapter, salt and block size. A prompt is looked up by digests; what
// an engine hashed with a salt, an adapter or an image is found only by who asks with
// the same. The hash leads to the record where an event has nothing else: removals, and
// stores that know no tokens. A block whose parent was never told of is known by its
// hash only, until somebody tells of it with a parent that is known.
//
// A digest is believed. Among a hundred million blocks the chance that any two have the
// same is 1 in 3,700, and that a block which nobody holds is taken for one of them 1 in
// 10^11: a request goes to an engine that has a block less than was said.
//
// # Copies
//
// vLLM tells of each physical copy of a block that it makes, and of each that it
// removes: holdings are counted, by source, group and tier. An engine can also be told
// to report what a request reuses, in the same words as a copy (kv_cache_report_mode
// "full"). The wire does not say which it is: a source is Origin.ReusesReported, or is
// taken for one from the first time that it reports a prefix which it holds and goes on
// behind it in the same batch. From then on an announcement from a prompt's beginning is
// no copy of what is held, and a window's report adds nothing: it names blocks that the
// window has not. What it had miscounted before is taken for one copy until
// AllBlocksCleared. All of this may say too little, not too much.
//
// # Groups
//
// All full-attention groups of a source must hold a prefix, of windows and recurrent
// states its last blocks. Of kinds that are not known all is asked for. A group counts
// from when it was told of, in a tier, until its source is cleared.
//
// # Memory
//
// A space is a tenant's blocks of one model. A record of it has 21 bytes and no pointer:
// hash, digest, who alone holds it or where the list of several is, and the number of its
// block's size, of which a space has at most 63. A table of 8 bytes a cell leads to it by
// hash. By its digest only the first record of a run is found: what an event tells of
// stands in records that follow each other, and who has found one looks at the next; see
// runs.go. Five million blocks on 64 engines take 33 bytes each, and at worst, told of one by
// one or evicted in no order, some 12 more. Nothing is ever copied as a whole, nothing is left
// for the garbage collector, and memory is not given back. Where Options.MaxBytes is
// reached, what is new is dropped, counted, and its source's answers are marked. So is a
// block that some 8,900 engines call by hashes of their own, or a hash of as many blocks, when one
// more comes: who looks for one of them passes by the others; see crowd.go.
//
// Tried and not taken: chains through the records in place of cells (half again the time
// to store a block: each step, and each that a growing table makes, is a cache miss); cells
// in the order of their keys without gaps, which take less memory and more time.
//
// # Concurrency
//
// One lock a space, for all that is in it. Writers hold it for 256 blocks at most,
// queries share it for 1024; decoding and hashing are done outside. Writers take turns: one
// of them makes what the others have ready, too, so that what is changed stays in one
// processor's cache; see turns.go. What a query finds
// is true of the moment at which each block was looked up.
//
//	lock       guards                       taken
//	Index.mu   the list of spaces           before none
//	space.mu   records, tables, lists, lanes  never with Index.mu
//	turns.mu   who waits for a turn         with no other
package prefixindex
