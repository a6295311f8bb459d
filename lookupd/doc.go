// Package lookupd is the lookup role: it knows the engines of the node, holds
// one lookup socket for each, and answers how much of a request's prefix is
// stored.
//
// # Sessions
//
// [Server] takes the sessions of the daemon's Unix socket. A session of role
// scheduler_shim registers one engine: its namespace, and the path of its lookup
// socket. The frames on that socket name no engine, so the socket fixes the
// namespace and a reset reaches no other. The end of the session unbinds the
// socket, closes the channel and releases the engine's leases. A session of role
// store_client is handed to [Config].StoreClient once it is welcome.
//
// # Lookups
//
// Lookups come in two ways: on an engine's lookup socket, by anyone who speaks
// the in-tree protocol, and on a channel, a stream socket that the engine itself
// sends. Each has one handler, called for one request at a time. It parses, asks
// the coordinator over a [View] of the [Catalog], and encodes. It answers
// everything: what does not parse, can't be served, or makes it panic gets the
// single byte 00, is counted by reason, and stops nothing. On a channel the lease
// is granted behind the answer, before the next request is read.
//
// # What it needs
//
// Sockets and the store are declared here ([Listener], [Conn], [Catalog]) and
// implemented elsewhere.
//
// Lock order: Server.mu is taken alone; no call leaves the package under it.
package lookupd
