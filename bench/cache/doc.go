// Package cache replays a trace of prompts against an eviction policy, the very
// type that the daemon runs, and counts hits.
//
// A request is looked up and stored completely before the next; time plays no
// part. It hits the leading blocks that are resident. Then each of its blocks is
// touched if it is resident at that moment, else inserted, in the order that is
// asked for. Nothing is in use, so that every block may be a victim.
package cache
