// Package feed follows one service: it has the events of a publisher brought by a
// Transport, decodes them, keeps the stream whole and applies it to an index. It says at
// any time how much of the stream is known.
//
// # One goroutine
//
// All is done by the goroutine of Run. What the transport brings waits in an inbox, which
// is bounded: a publisher must not wait for us, so the oldest messages are dropped where it
// is full, which shows as a gap in their numbers, and the gap is asked for. A replay's
// answers may wait for us, and do.
//
// # Connections
//
// A stream begins when the connection is made, or some seconds later without one. A
// connection that was lost leaves what is known and marks it; when it is there again the
// publisher is asked for what was applied last, and only one that has it is the same.
// Without a replay endpoint nobody can be asked: everything is forgotten then. While nothing
// comes, what was applied last is asked for now and then: the publisher may be gone, or
// have told something that was not heard. A connection that does not come back is given up
// and made anew.
//
// # Replays
//
// One at a time, over a connection of its own, so that no answer can be taken for another
// one's. Publishers answer them in the thread that publishes: a feed that has asked often
// waits with the next one.
package feed
