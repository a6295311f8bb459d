// Package datapath measures what the daemons add to a load and to a store: a
// real mooncake-lookupd and mooncake-worker, and a stand-in engine that speaks
// the session protocol and shares its KV cache as vLLM's shim does.
//
// Several builds are compared in one run, in turns, so that what else the
// machine does falls on all of them. A round starts fresh daemons. "first" is a
// load into blocks that nobody has touched, "warm" one into blocks that were
// loaded before. "copy-in" and "copy-out" are the yardstick: one thread copies the
// same pieces. These two and what they are beside, "warm", "restore" and "ahead", begin
// with nothing in the caches, where one would leave what the next one reads. "ahead" is
// a store as the shim sends a prefill's: the worker had the job before the caches were
// emptied, which stands for the engine's step, and the time is from the word that the
// bytes are final. With
// stores queued, "queued" is a load while they wait or run, "alone" one before
// that, "stores" the time until the last is done. Times are medians in
// microseconds: what the engine waits for (from the job's frame, or that word, to the result's
// arrival), and what the worker says of it. On a machine that others use too, the worker's processor time says more
// than the wait.
package datapath
