// Package client is a worker's side of the embedded store: a session with
// mooncake-lookupd, the mapped segments, and store.Store over gRPC.
//
// # Sessions
//
// Run keeps a session open, reconnecting for ever. A call that fails in a way
// that leaves open what the master did (a deadline, a broken connection) ends
// the session: the next one declares what is really held, and the master gives
// the rest back. While there is no session every call fails at once with
// store.ErrUnavailable, so a stopped master costs one deadline and not one a
// job.
//
// # Segments
//
// A new master that could not adopt the old segment brings a new one. Places
// name segments by a number that is never used twice in the client's life, so a
// place of the old segment can't be mistaken for one of the new. An old mapping
// is closed when nothing is held in it.
//
// # Offers
//
// The master sends references that a load will ask for. They are held like any
// other; Get takes them if they are just what it wants, else they are declined.
package client
