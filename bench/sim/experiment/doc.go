// Package experiment has the simulator's experiments. Each answers a figure or a
// table of the Mooncake papers and puts the papers' values, where they are known,
// beside its own: S1 is arXiv 2407.00079 version 1, S4 the paper at FAST'25, whose
// figures' values were read off the drawings.
package experiment
