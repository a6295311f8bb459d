// Package evict decides which chunk goes when memory is needed. Policies are
// pure state machines over record numbers: no clock, no lock, no I/O, so that
// the daemon, the benchmarks and the simulator run the same object.
//
// A policy's memory is fixed when it is made: arrays without pointers, indexed
// by record number, which the garbage collector does not look into. Every call
// takes constant time, amortised, apart from the chunks that a victim's caller
// vetoes.
//
// The order is that of the whole store. Chunks of a class (slots of one size,
// or a pin's class: the caller's choice) stand in lists of their own, so that a
// victim of one class is found without passing over the others; across classes
// the lists are compared by their ends.
package evict
