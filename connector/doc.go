// Package connector is the session protocol between the shim inside vLLM's
// processes and the daemons beside them, and the rank's ledger of requests and
// jobs. It is pure but for reading and writing an io stream: sockets belong to
// internal/unixmsg.
//
// # Frames
//
// A session is a Unix stream socket. Each frame is a big-endian u32 length
// followed by that many bytes: one msgpack map with string keys, of which "t"
// names the message. A frame longer than MaxFrameBytes ends the session.
// Descriptors travel by SCM_RIGHTS with the bytes of the frame whose "fds"
// field counts them.
//
// # Conversations
//
// A peer opens with hello and is answered with welcome or error. What may
// follow depends on the role; docs/protocol.md has the whole of it.
package connector
