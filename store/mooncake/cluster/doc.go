// Package cluster reads how a Mooncake Store cluster is reached: the file that
// MOONCAKE_CONFIG_PATH names and the variables beside it, as the in-tree connector
// of vLLM does (vllm/distributed/mooncake_store.py), so that one file serves both.
//
// What the in-tree connector takes is taken, with the same meaning. What it would
// hand to Mooncake only to fail there, with a number, is refused here with a
// sentence. Fields that neither knows are named in a note.
package cluster
