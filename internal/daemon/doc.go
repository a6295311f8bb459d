// Package daemon puts the daemons together: it makes the edges (sockets, shared
// memory, gRPC), hands them to the roles, and starts and stops everything in one
// order. Each Run function blocks until its context ends or the daemon has been
// idle for its linger time.
//
// # mooncake-lookupd
//
// Start:
//
//  1. the runtime directory, made or checked;
//  2. the session socket, whose lock says that no other lookupd has the directory;
//     connections queue from here on;
//  3. the segment: adopted from a worker that kept it, or new;
//  4. the store's gRPC service;
//  5. maintenance: allocation of the segment's memory, expiry, the dead;
//  6. sessions.
//
// Stop is the reverse: the sessions end first, which unbinds every lookup socket
// and removes the session socket; then gRPC calls finish, maintenance stops, and
// the segment is unmapped. Workers keep it alive for the next lookupd.
//
// # mooncake-worker
//
// Start: the runtime directory, the session socket, the store client (which
// connects in the background and again whenever the store is gone), sessions.
// Stop: the session socket, the sessions with their pipelines, the store client,
// its mappings.
package daemon
