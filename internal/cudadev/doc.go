// Package cudadev reaches a KV cache in the memory of a GPU: the device kind "cuda".
//
// # The engine's memory
//
// A region lies in an allocation of the engine's, which came as an IPC handle
// ("cuda_ipc") or as chunks with descriptors ("cuda_vmm"). An allocation is mapped
// once, however many regions and sessions lie in it: the driver does not map one
// twice. It is unmapped the moment the last session of the engine has ended, for
// until then the GPU's memory is not free.
//
// The GPU is told by its UUID, as engine and worker may number it differently. The
// context, some hundred MB of GPU memory, is there while engines are.
//
// # Who waits for what
//
// A job names an event of the engine's ring: all that the engine had given to the
// GPU before the job. It is looked at from here until it has happened; nothing is
// enqueued before that. So a cancel, or the engine's death, ends the wait, which a
// stream that waits for the event would not. Then a batch is enqueued in launches,
// each of some MB. Between two the job's board is looked at, and whatever has
// become of the job, Copy is done only when the GPU is through with all that was
// enqueued: that is the fence.
//
// # Ways to copy
//
// A kernel (copy.ptx) copies all pieces of a launch at once; or the copy engines
// do, piece by piece, and leave the processors to the engine. Which is the faster
// for pieces as they are is measured when a KV cache is mapped.
//
// The store's memory is registered with the driver in steps, in the background,
// behind what lookupd has allocated; what is not registered, or could not be, goes
// through a buffer that is. The latter is logged and counted.
//
// # Checksums
//
// The CPU sums: what a store has brought, once it is there; what a load sends,
// while the GPU copies it. The bus has checksums of its own.
package cudadev
