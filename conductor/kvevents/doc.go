// Package kvevents reads and writes vLLM's stream of KV-cache events: which blocks
// an engine, or a store beside it, has begun or ceased to hold. The format is that
// of vLLM 0.32.0, vllm/distributed/kv_events.py; testdata has bytes that its own
// encoder wrote. The package is pure: sockets are elsewhere.
//
// # Batch
//
// A batch is a MessagePack array: [time in seconds, events, data-parallel rank or
// nil]. Since vLLM 0.24 an event is a map with its class name under "type"; before,
// and with SGLang, it is an array that begins with the name. The decoder takes both,
// and both forms of block hashes: the low 64 bits as a number, or all bytes. What it
// does not know in an event it passes over; an event that it can't read costs that
// event, not the batch.
//
// # Libraries
//
// github.com/ugorji/go/codec, in both directions: it reads a struct from a map or an
// array, whichever comes, and keeps a part undecoded (Raw) until its kind is known.
package kvevents
