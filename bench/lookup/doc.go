// Package lookup measures what a lookup costs whom it answers: from the call in
// the client's process to the answer, over the daemon's real socket, in an index
// that holds a million other chunks; beside vLLM's own lookup server on a real
// mooncake_master, asked by turns.
//
// The daemon is the mooncake-lookupd of a build. It adopts a segment that this
// package has filled and keeps for it, as a worker would: so that a million
// chunks need their records and no bytes, and no machine is too small.
package lookup
