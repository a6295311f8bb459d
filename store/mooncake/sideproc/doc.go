// Package sideproc is a mooncake.Engine in a process of its own: Mooncake's
// client from its Python wheel, called over a socket. A crash in it is not ours,
// and the operator chooses the wheel that fits the cluster: an interpreter that
// has it.
//
// # The process
//
// The program is agent/agent.py, a part of this binary, given to "python -I -" on
// its standard input. It has two descriptors: a stream socket (3) for calls, and
// the memory file (4), which it maps and registers with Mooncake. No bytes of
// objects pass the socket. Its standard output and error are logged.
//
// It ends when the socket is closed, and with the thread that started it
// (PR_SET_PDEATHSIG), which Run keeps for itself: stopped or stuck, it does not
// outlive this process.
//
// # Frames
//
// A frame is a length (of what is behind it), the number of the call, a kind, and
// a body, little-endian. First comes a hello, answered by the settings; what
// became of them is the third frame. Then there are calls and their answers:
//
//	call     keys u32 | bytes of keys u32 | keys with zero bytes between | offsets u64… | lengths u64… | how
//	answer   one i64 for each key, or a text that says what is wrong
//
// # Time
//
// Calls have lanes by kind, each with a width, and the process a thread for each
// call that may be under way: one that was sent is being made. Transfers have threads
// of low priority: Mooncake's calls wait for their bytes by looking all the time. A process that does not answer a ping, or a
// call within its limit, is killed and another started, with pauses that grow.
// Calls under way fail then. A call that moves bytes ends only with its answer or
// the end of the process, so that nobody else gets its memory before.
package sideproc
