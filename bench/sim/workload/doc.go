// Package workload is what a simulated cluster is asked to do: requests with
// arrival, lengths and the blocks of their prompts, from a trace or made from
// statistics.
package workload
