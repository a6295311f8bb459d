// Package zmqx is the only user of libzmq. It offers a Responder, which owns a
// ROUTER socket in one goroutine and answers REQ and DEALER clients in order, a
// Client, which asks with a deadline, and a Publisher, which sends to whoever has
// subscribed. Subscribe follows a publisher, and Ask puts one question that has any number
// of answers: what an indexer needs of each of its engines, without a thread for it. A subscription reads
// its connection itself, without libzmq.
//
// # Paths
//
// libzmq removes whatever stands at an ipc path before it binds, which would
// take the path away from a live server. A Responder therefore binds inside a
// fresh directory of mode 0700 beside the wanted path, restricts the socket file
// to its user, and gives it its name by link(2), which refuses an existing one.
// A name whose server is dead is replaced; a name that answers is left alone and
// reported as ErrAddressInUse.
//
// # Ownership
//
// A ZeroMQ socket may be used by one thread of control at a time. The goroutine
// that Listen starts owns its socket; Close asks it to stop through a pair of
// inproc sockets and waits for it. The goroutine of Ask waits in Go's poller
// (waiter.go), which Close wakes.
package zmqx
