// Package jobqueue decides which job of a worker goes on, and what is dropped. It
// is a state machine: no lock, no clock, no goroutine.
//
// # What waits
//
// A session is one engine rank. Its jobs wait in the order in which they came,
// loads and stores apart, within a budget of jobs and of bytes (of what describes
// a job, not of what it moves). A load that finds the bytes used up takes the
// place of the newest stores: a request waits for a load, nobody waits for a
// store. A store that finds no room is dropped, itself the newest; and so is a
// load where there is no store left to make room. All sessions together have a
// budget of bytes too, for stores only: a load does not suffer for what other
// engines store.
//
// Of a session's stores one is begun at a time: a request's next job goes on where
// its last one ended. Of its loads [Limits.Loads] are, in the order in which they
// came. One that waits for a slow tier gives its place up meanwhile, so that it
// holds up no other, and has one again, above the limit or not, when it goes on.
// When the places are taken there are as many more for short loads, whose
// descriptions take a small part of what those in the places take: 1,000 tokens
// do not wait until one of 32 loads of 128,000 has ended. As short loads take no
// place of the others, these need no bound of age.
//
// # Who moves
//
// A begun job moves its bytes in pieces, and asks before each. Loads go first: no
// store's piece begins while there is a load, of whatever session, that asks the
// store or moves. A piece that is under way is not taken back, so that is what a
// load may find beside it; whoever copies a store's may end it early, when
// [Queue.LoadsFirst] says so. But stores are not starved, or the engine's blocks that
// they hold would be held for good: after [Limits.PassedOver] pieces of loads while
// a store waits, the store that has waited longest has one, beside the loads'. And
// a load for which stores wait has to move on, from a step to the next: one that
// has done nothing between two ticks of [Queue.Tick], because a copy or the store
// hangs, holds up no store until it does.
//
// The loads of a session share its pieces out by bytes: start time fair queueing.
// Each load has a tag, what it has moved on a clock that all of them share; the
// lowest goes next, and a load that comes anew starts at the clock. So 1,000
// tokens wait behind a piece of each of the others, not behind the 128,000 of one
// of them. It does what deficit round robin does, without a quantum to choose: a
// piece may have any size, and a load that is [Queue.Alone] has larger ones. The
// bound, which a test holds: while a load waits for a piece, each other one is
// granted at most two of the largest pieces.
//
// Loads of different sessions do not wait for each other: each session has as many
// pieces as any other, and a copy that does not end holds up one engine's loads.
package jobqueue
