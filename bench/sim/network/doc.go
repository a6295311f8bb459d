// Package network is the links between nodes: each node has one link out and one
// in, and each carries one transfer at a time, first come, first served.
package network
