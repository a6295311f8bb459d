// Package model is what things cost on a node of the papers: eight A800 that
// serve a dense transformer of 70 billion parameters. Everything is a function of
// token counts; time is in seconds, for these are formulas, and becomes a
// time.Duration where a clock begins.
//
// n is the tokens of a prompt, p those of them whose KV cache is there already.
// The constants of Costs are fitted to Fig. 14 of the FAST'25 paper and checked
// against its Fig. 8, which the fit has not seen.
package model
