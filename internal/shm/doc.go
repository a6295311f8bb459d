// Package shm is the edge to shared memory: memory files that are sealed, so
// that no peer can shrink them under a mapping, and their mappings.
//
// A file that can shrink is a SIGBUS waiting to happen: every file that comes
// from a peer is checked for its size and its F_SEAL_SHRINK before it is mapped,
// and every file we make is allocated in full and sealed before it is handed
// out.
//
// A [Mapping] owns its address range. Its bytes are no Go memory: nothing may
// use a slice of them after Close, and the race detector does not see what
// other processes do to them.
package shm
