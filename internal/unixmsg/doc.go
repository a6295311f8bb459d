// Package unixmsg is the edge to Unix stream sockets: listening at a path that
// is never stolen from a live server, peers checked by their credentials, and
// descriptors passed beside the bytes.
//
// # Descriptors
//
// The kernel delivers descriptors with the first byte of the write that carried
// them, and a read never goes past such a byte's write. A [Conn] therefore
// queues what came with the bytes read so far. A reader that stops at the end of
// each frame finds in the queue exactly the frame's descriptors; anything else
// is the peer's fault. Queued descriptors belong to the Conn until they are
// taken, and Close closes them.
package unixmsg
