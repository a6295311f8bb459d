// Package machine tells where a benchmark runs and what else the machine does
// meanwhile, from /proc.
package machine
