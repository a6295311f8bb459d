// Package kvevents reads and writes streams of KV-cache events: which blocks an
// engine, or a store beside it, has begun or ceased to hold. It writes the format of
// vLLM 0.32.0, vllm/distributed/kv_events.py, and reads what vLLM has written since
// 0.9, what SGLang writes, and what mooncake_master does. testdata has bytes that
// vLLM's own encoder wrote. The package is pure: sockets are elsewhere.
//
// # Batch
//
// A batch is a MessagePack array: [time in seconds, events, data-parallel rank or
// nil]. Since vLLM 0.24 an event is a map with its class name under "type"; before,
// and with SGLang, it is an array that begins with the name. mooncake_master writes
// maps with names of its own, and the time in milliseconds. The decoder takes all of
// these, block hashes as numbers, signed or not, or as bytes, of which it keeps the
// last 64 bits. What it does not know in an event it passes over; an event that it
// can't read costs that event, not the batch, and what was known before it unless it
// only told of new blocks.
//
// # Libraries
//
// Batches are written with github.com/ugorji/go/codec. They are read by hand: an
// indexer has to follow the streams of hundreds of engines, nearly all of whose bytes
// are token ids, and the codec, which is general, takes several times as long and
// allocates what it reads. Tests compare the two.
package kvevents
