// Package hostdev reaches a KV cache in the engine's CPU memory: the device kind
// "host".
//
// A region is a memory file that the engine shares ("memfd"), mapped here, or,
// where nothing could be shared, a range of the engine's private memory
// ("process_vm"), read and written by the kernel on our behalf.
//
// # Copies and checksums
//
// A copy and its CRC-32C are one pass: a piece that fits the cache is copied and
// its checksum read from where it was copied to. A checksum of the source would
// say nothing of what arrived.
//
// A page of a mapping can still fail under us (a memory error, a huge page that
// can't be had). That ends the batch with an error, not the process.
package hostdev
