// Package prefixindex knows which engines, and which stores beside them, hold which
// prefixes: it takes their KV-cache events and answers how many tokens of a prompt each
// of them has. It is pure: streams, replays and restarts are its caller's, who tells it
// by Clear what is no longer known.
//
// # Identity
//
// Engines name a block by a hash of their own, which they may make in different ways.
// The index makes digests of its own, of 128 bits, from the tokens of the events, along
// each prompt: digest = H(digest before, H(tokens, extra keys)), beginning with a root
// of tenant, model, adapter, salt and block size. A prompt is looked up by digests; what
// an engine hashed with a salt, an adapter or an image is found only by who asks with
// the same. The hash leads to the record where an event has nothing else: removals, and
// stores that know no tokens. A block whose parent was never told of is known by its
// hash only, until somebody tells of it with a parent that is known.
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
// A space is a tenant's blocks of one model. A record of it has 32 bytes and no pointer;
// two tables of 8 bytes a cell lead to it, by hash and by digest. Who alone holds a block
// is noted in the record; of several there is a list of 4 bytes each. Five million
// blocks on 64 engines take 59 bytes each. Nothing is ever copied as a whole, and memory
// is not given back. Where Options.MaxBytes is reached, what is new is dropped, counted,
// and its source's answers are marked.
//
// Tried and not taken: chains through the records in place of cells. They take 11 bytes
// less a block and half again the time to store one: each step along a chain, and each
// that a growing table makes, is a cache miss.
//
// # Concurrency
//
// One lock a space, for all that is in it. Writers hold it for 256 blocks at most,
// queries share it for 1024; decoding and hashing are done outside. What a query finds
// is true of the moment at which each block was looked up.
//
//	lock       guards                       taken
//	Index.mu   the list of spaces           before none
//	space.mu   records, tables, lists, lanes  never with Index.mu
package prefixindex
