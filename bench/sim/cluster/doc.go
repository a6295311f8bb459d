// Package cluster simulates a disaggregated cluster: prefill nodes with a prefix
// cache and a queue each, decode nodes with a batch each, links between them, and
// the production scheduler in front.
//
// Time is virtual, and all happens on one goroutine in the order of the event
// queue; what is random draws from a seeded generator. The same configuration and
// workload give the same result, byte for byte.
//
// A prompt that is placed takes its node's GPUs from the end of the queue (or of
// its transfer) for as long as the cost model says; its blocks are in the node's
// cache from the decision on, ready when they are computed. Who comes later to the
// same node may count on them, for it runs later. What was generated is not put in
// the cache: the traces do not tell which prompt continues it.
package cluster
