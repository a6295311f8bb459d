// Package events publishes what the store holds as vLLM's KV events.
//
// A chunk is told of as stored when all shards of it are there, in memory (medium
// CPU) or on the disk (STORAGE), and as removed when it went from there. So one that
// is demoted is stored on the disk first and removed from memory then, and one that
// is promoted is on both. Only lookupd publishes, however many ranks and engines
// there are: each transition once.
//
// # Streams
//
// Events name no model, and block hashes of two models may be equal. So each
// namespace has a stream of its own: a topic, and sequence numbers. They begin at
// the time in microseconds at which the stream began, so that those of a lookupd
// that was started anew are higher than those of the one before, and a subscriber
// sees a gap, not old numbers.
//
// # Announcements
//
// A stream begins with AllBlocksCleared and all that is there. The same follows on a
// reset; when the feed of the store was faster than this package, so that changes
// are lost; and when somebody asks for older batches than the replay buffer has.
// Whoever goes by the stream from AllBlocksCleared on knows what is there. A batch
// without events is the end of an announcement: what was told before it and is not
// told again by then is gone.
//
// An announcement walks over the store's chunks in parts, between which changes are
// told on. The store says of each part how many changes it takes account of, and of
// each change the number of the chunk. A change of a chunk that the walk has not
// reached is passed over: the walk will find it. So nothing is told twice, and no
// copy of what was told is kept.
//
// The store waits for nobody here, and this package for no subscriber.
package events
