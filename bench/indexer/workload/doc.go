// Package workload makes what indexers are measured with: batches of KV-cache events as
// vLLM 0.32 sends them, for many engines, and the prompts that are then asked for. The
// same options make the same bytes, in every process.
//
// A prompt is some events of a chain: each names the last block of the one before as its
// parent. It is held by one engine or by several, which then call its blocks by the same
// hashes. Batches come prompt by prompt, engines by turns.
package workload
