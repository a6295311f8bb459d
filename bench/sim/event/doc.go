// Package event is the simulator's clock: a queue of things that will happen, in
// order of their time and, at equal times, of when they were put in. One
// goroutine, no wall clock, no randomness, so that a run is a function of its
// input.
package event
