// Package control serves adminpb.Admin: what an operator may ask of a running
// mooncake-lookupd and its store, over gRPC.
//
// The service checks every field before it asks the store anything, and answers
// with a code that a program can branch on and a sentence that says what to do:
//
//	InvalidArgument     the request is wrong as it is written
//	NotFound            the namespace is not (or no longer) here
//	ResourceExhausted   a share or a table is full: hard pins, quotas
//	FailedPrecondition  the daemon was not set up for it: no disk tier
//	Unavailable         it is done, but the disk has not taken note in time
//	Internal            a fault of ours, which is in the daemon's log
//
// A long list of hashes reaches the store in batches, so that lookups do not wait
// for an operator; a call that is given up stops between two of them, and what
// was done until then stays done.
//
// Who may call is for the listener to decide: the store's socket takes its own
// user and root.
package control
