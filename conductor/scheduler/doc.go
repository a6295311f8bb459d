// Package scheduler decides where a request is prefilled, from where the part of
// its prefix that is missing there is fetched, and which instance decodes it, or
// that it is refused. It is Mooncake's Algorithm 1 with its simpler relatives, and
// what improves on it.
//
// It is pure: facts in, a decision out, with the cost terms of every candidate, so
// that a decision can be explained. It keeps no view of the cluster; the caller
// has queues, caches and links, carries out what was decided, and tells the next
// time what has become of it. Router and simulator run the same code.
//
// # Algorithm 1
//
// For every prefill instance: local is the leading blocks that it has, or will
// have once its queue has run; best is the longest prefix that is ready on any
// instance. If another instance has best, and best is more than Threshold times
// local, the difference is fetched, else it is computed. The instance with the
// least estimated time to first token is taken: transfer, queue and prefill. If
// that, or the time between tokens on the least loaded decode instance, is beyond
// the request's objectives, it is refused, without a side effect.
//
// All durations are from now on. A Scheduler is for one goroutine.
package scheduler
