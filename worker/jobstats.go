package worker

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/histogram"
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
	// Took is from a job's arrival to its result; Ask is the store's part, Move
	// the copies'.
	Took, Ask, Move histogram.Snapshot
}

// jobCounters count the answered jobs of a kind.
type jobCounters struct {
	status                               [4]atomic.Uint64
	reason                               [numReasons]atomic.Uint64
	asked, existing, moved, failedBlocks atomic.Uint64
	bytes                                atomic.Uint64
	took, ask, move                      histogram.Histogram
}

// count counts a result.
func (c *jobCounters) count(r *connector.Result) {
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
	c.took.Observe(time.Duration(r.Micros) * time.Microsecond)
	if r.Asked > 0 {
		c.ask.Observe(time.Duration(r.AskMicros) * time.Microsecond)
		c.move.Observe(time.Duration(r.MoveMicros) * time.Microsecond)
	}
}

func (c *jobCounters) snapshot() JobStats {
	s := JobStats{
		ByStatus: map[string]uint64{}, ByReason: map[string]uint64{},
		Asked: c.asked.Load(), Existing: c.existing.Load(), Moved: c.moved.Load(), FailedBlocks: c.failedBlocks.Load(), Bytes: c.bytes.Load(),
		Took: c.took.Snapshot(), Ask: c.ask.Snapshot(), Move: c.move.Snapshot(),
	}
	for i, status := range statuses {
		s.ByStatus[status] = c.status[i].Load()
	}
	for i, reason := range append(slices.Clone(reasons), otherReason) {
		s.ByReason[reason] = c.reason[i].Load()
	}
	return s
}

// QueueStats tells what queues hold.
type QueueStats struct {
	// WaitingLoads and WaitingStores have not begun, Running have. Bytes is the
	// memory that all of them take.
	WaitingLoads, WaitingStores, Running int
	Bytes                                int64
}

func (q *queue) stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return QueueStats{
		WaitingLoads: len(q.loads), WaitingStores: len(q.stores), Running: len(q.live) - len(q.loads) - len(q.stores), Bytes: q.bytes,
	}
}

func (s *Server) watchQueue(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queues[q] = struct{}{}
}

func (s *Server) unwatchQueue(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.queues, q)
}

// queueStats adds the queues up.
func (s *Server) queueStats() (all QueueStats) {
	s.mu.Lock()
	queues := make([]*queue, 0, len(s.mu.queues))
	for q := range s.mu.queues {
		queues = append(queues, q)
	}
	s.mu.Unlock()
	for _, q := range queues {
		one := q.stats()
		all.WaitingLoads += one.WaitingLoads
		all.WaitingStores += one.WaitingStores
		all.Running += one.Running
		all.Bytes += one.Bytes
	}
	return all
}
