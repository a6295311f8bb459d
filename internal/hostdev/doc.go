// Package hostdev reaches a KV cache in the engine's CPU memory: the device kind
// "host".
//
// A region is a memory file that the engine shares ("memfd"), mapped here, or,
// where nothing could be shared, a range of the engine's private memory
// ("process_vm"), read and written by the kernel on our behalf.
//
// # Copies and checksums
//
// A copy and its CRC-32C are one pass: each word is read once, summed, and
// written past the caches. The sum is folded in vector registers, which keeps up
// with memory; the processor's own instruction for it would not. What is copied
// next, in the same piece or another, is fetched meanwhile. Elsewhere than
// on amd64 a piece that fits the first-level cache is copied and then summed
// where it was copied to. A checksum of the source, read once more, would say
// nothing of what arrived.
//
// # Who waits for what
//
// A request waits for a load: its batches are divided among a few cores. Nobody
// waits for a store: all of an engine's have one thread of low priority, so that
// the engine's own threads come first, and gives way to loads. Memory that the
// engine has touched is entered in our page table ahead of loads, at low priority
// too: a fault every page takes longer than its copy.
//
// A page of a mapping can still fail under us (a memory error, a huge page that
// can't be had). That ends the batch with an error, not the process.
package hostdev
