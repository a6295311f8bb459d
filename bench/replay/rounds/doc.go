// Package rounds sums up replays of one trace that were made in rounds, each store once
// a round: what was cached beside what the trace says must be, and times to first token
// relative to one of the stores, request by request of the same round.
//
// Intervals are 95 % bootstrap intervals that draw rounds first and then requests: a
// round's requests share what else the machine did then. With one round they tell only
// how requests vary.
package rounds
