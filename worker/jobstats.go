package worker

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/jobqueue"
)

// statuses and reasons are what results say, in the order of the counters.
var (
	statuses = []string{connector.StatusOK, connector.StatusFailed, connector.StatusCancelled, connector.StatusDropped}
	reasons  = []string{
		reasonMalformed, reasonQueueFull, reasonStaleEpoch, reasonRetired, reasonCancelled, reasonNoStore, reasonStoreError, reasonAbsent,
		reasonCorrupt, reasonCopy, reasonNoSpace, reasonRefused, reasonUnderway, reasonVoid, reasonBadPlace,
	}
)

// numReasons is len(reasons), which a test holds true, and one for what is new.
const numReasons = 16

// otherReason counts reasons that the list above lacks.
const otherReason = "other"

// JobStats are the answered jobs of a kind.
type JobStats struct {
	// ByStatus has every status, ByReason every reason of what was not ok.
	ByStatus, ByReason map[string]uint64
	// Asked chunks were asked of the store; Existing of them it had already,
	// Moved were copied, FailedBlocks did not get their bytes (of loads).
	Asked, Existing, Moved, FailedBlocks uint64
	Bytes                                uint64
}

// Observer takes durations in seconds, as a Prometheus histogram does.
type Observer interface{ Observe(seconds float64) }

// JobTimes are told how long the answered jobs of a kind took. Those who run jobs
// call them side by side. What is nil is not told.
type JobTimes struct {
	// Took is from a job's arrival to its result. Of a job that asked the store,
	// Ask is the store's part, Move the copies' and their publication's. Wait is what
	// it waited to begin and for others' pieces, and what a store rested.
	Took, Ask, Move, Wait Observer
}

func (t *JobTimes) observe(r *connector.Result, waited time.Duration) {
	observe(t.Took, r.Micros)
	observe(t.Wait, waited.Microseconds())
	if r.Asked > 0 {
		observe(t.Ask, r.AskMicros)
		observe(t.Move, r.MoveMicros)
	}
}

func observe(o Observer, micros int64) {
	if o != nil {
		o.Observe(float64(max(micros, 0)) / 1e6)
	}
}

// jobCounters count the answered jobs of a kind.
type jobCounters struct {
	status                               [4]atomic.Uint64
	reason                               [numReasons]atomic.Uint64
	asked, existing, moved, failedBlocks atomic.Uint64
	bytes                                atomic.Uint64
	times                                JobTimes // set before the first count
}

// count counts a result.
func (c *jobCounters) count(r *connector.Result, waited time.Duration) {
	if at := slices.Index(statuses, r.Status); at >= 0 {
		c.status[at].Add(1)
	}
	if r.Status != connector.StatusOK {
		at := slices.Index(reasons, r.Reason)
		if at < 0 {
			at = numReasons - 1
		}
		c.reason[at].Add(1)
	}
	c.asked.Add(uint64(max(r.Asked, 0)))
	c.existing.Add(uint64(max(r.Existing, 0)))
	c.moved.Add(uint64(max(r.Chunks, 0)))
	c.failedBlocks.Add(uint64(len(r.Failed) / 4))
	c.bytes.Add(uint64(max(r.Bytes, 0)))
	c.times.observe(r, waited)
}

func (c *jobCounters) snapshot() JobStats {
	s := JobStats{
		ByStatus: map[string]uint64{}, ByReason: map[string]uint64{},
		Asked: c.asked.Load(), Existing: c.existing.Load(), Moved: c.moved.Load(), FailedBlocks: c.failedBlocks.Load(), Bytes: c.bytes.Load(),
	}
	for i, status := range statuses {
		s.ByStatus[status] = c.status[i].Load()
	}
	for i, reason := range append(slices.Clone(reasons), otherReason) {
		s.ByReason[reason] = c.reason[i].Load()
	}
	return s
}

// QueueStats tells what the sessions' queues hold.
type QueueStats = jobqueue.Stats
