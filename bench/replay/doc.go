// Package replay sends a trace's requests to a live server and measures what its
// users would have seen.
//
// In an open loop every request goes out when the trace says, whether or not those
// before it were answered, and its times count from that moment: a server that
// stalls does not slow the trace down, and the stall shows in every request that
// came due in it. In a closed loop a number of requests is always under way, in
// the trace's order; that measures a server's speed and not its users' wait.
//
// A request that fails is an Outcome like others, and the replay goes on. It ends
// early when the context does, or when the server can't be reached any more; what
// was measured until then is the result.
package replay
