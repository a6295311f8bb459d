package network

import "time"

// Network is the state of all links.
type Network struct {
	bytesPerSecond float64
	// out and in are when a node's links are free.
	out, in []time.Duration
}

// New returns idle links of so many nodes.
//
// REQUIRES: bytesPerSecond > 0.
func New(nodes int, bytesPerSecond float64) *Network {
	return &Network{bytesPerSecond: bytesPerSecond, out: make([]time.Duration, nodes), in: make([]time.Duration, nodes)}
}

// Takes is the time that so many bytes take once they have their links.
func (n *Network) Takes(bytes int64) time.Duration {
	return time.Duration(float64(bytes)/n.bytesPerSecond*float64(time.Second) + 0.5)
}

// Wait is how long a transfer that is asked for now would wait for its links.
func (n *Network) Wait(now time.Duration, from, to int) time.Duration {
	return max(n.out[from]-now, n.in[to]-now, 0)
}

// OutWait and InWait are how long one node's link is taken.
func (n *Network) OutWait(now time.Duration, node int) time.Duration { return max(n.out[node]-now, 0) }

// InWait is how long the link into a node is taken.
func (n *Network) InWait(now time.Duration, node int) time.Duration { return max(n.in[node]-now, 0) }

// Send adds a transfer to the queues of both links and returns when it is through
// both. Neither stands idle because the other is taken: adapters have many
// transfers under way, and what waits for one receiver does not hold up the next.
func (n *Network) Send(now time.Duration, from, to int, bytes int64) time.Duration {
	takes := n.Takes(bytes)
	n.out[from] = max(n.out[from], now) + takes
	n.in[to] = max(n.in[to], now) + takes
	return max(n.out[from], n.in[to])
}
