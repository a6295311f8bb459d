// Package worker is the role of mooncake-worker: it takes the jobs of engine
// ranks, moves their KV blocks between the engine's memory and the store's, and
// answers each job once.
//
// # Sessions
//
// A [Server] is given connections. One connection is one session: a reader (the
// goroutine that serves the connection), one goroutine for stores, a few for
// loads. When the connection ends, its pipelines stop at their next batch and
// are waited for before the KV cache is unmapped; the other sessions go on.
//
// # The fence
//
// After a job's [connector.Result] not one byte of its blocks is read or written
// by us. A result is therefore sent only by whoever knows that no copy of the
// job is under way:
//
//   - a job that is still queued is taken out of the queue and answered, both
//     under the session's lock, by the reader that got its cancel;
//   - a job that has begun is answered by its pipeline alone, which waits for
//     every batch it has enqueued, cancelled or not.
//
// A cancel is seen on the job board before the frame arrives: each batch looks
// at the job's word first, and a store looks once more before it publishes.
//
// # Failure
//
// A store that is away never holds an engine up: loads report all their blocks,
// stores are dropped. What was taken from the store and could not be given back
// is remembered by the cleaner, which tries again.
package worker
