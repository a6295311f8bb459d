package worker

import (
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// Stats are a server's counts since its start.
type Stats struct {
	Loads, LoadsFailed, LoadsCancelled    int64
	Stores, StoresFailed, StoresCancelled int64
	// Dropped jobs were never tried.
	Dropped int64
	// CorruptChunks did not match their checksum, AbsentChunks were gone.
	CorruptChunks, AbsentChunks int64
	LoadedBytes, StoredBytes    int64
	// MalformedFrames did not parse or named what was never registered.
	MalformedFrames int64
	// RefusedConns were closed before they were served.
	RefusedConns int64

	// LoadJobs and StoreJobs are the answered jobs in detail.
	LoadJobs, StoreJobs JobStats
	// Cancels counts the jobs that engines asked to give up, answered or not.
	Cancels int64
	// Queues is what the sessions' queues hold now, all together.
	Queues QueueStats
	// Engines have a session now.
	Engines int
}

type counters struct {
	loads, loadsFailed, loadsCancelled    atomic.Int64
	stores, storesFailed, storesCancelled atomic.Int64
	dropped, corrupt, absent              atomic.Int64
	loadedBytes, storedBytes              atomic.Int64
	malformed, refused, cancels           atomic.Int64
	loadJobs, storeJobs                   jobCounters
}

// Stats returns the counts.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Loads: c.loads.Load(), LoadsFailed: c.loadsFailed.Load(), LoadsCancelled: c.loadsCancelled.Load(),
		Stores: c.stores.Load(), StoresFailed: c.storesFailed.Load(), StoresCancelled: c.storesCancelled.Load(),
		Dropped: c.dropped.Load(), CorruptChunks: c.corrupt.Load(), AbsentChunks: c.absent.Load(),
		LoadedBytes: c.loadedBytes.Load(), StoredBytes: c.storedBytes.Load(),
		MalformedFrames: c.malformed.Load(), RefusedConns: c.refused.Load(), Cancels: c.cancels.Load(),
		LoadJobs: c.loadJobs.snapshot(), StoreJobs: c.storeJobs.snapshot(), Queues: s.schedule.stats(), Engines: s.Engines(),
	}
}

// count counts a result.
func (c *counters) count(r *connector.Result, waited time.Duration) {
	all, failed, cancelled, bytes := &c.stores, &c.storesFailed, &c.storesCancelled, &c.storedBytes
	jobs := &c.storeJobs
	if r.Kind == connector.TypeLoad {
		all, failed, cancelled, bytes = &c.loads, &c.loadsFailed, &c.loadsCancelled, &c.loadedBytes
		jobs = &c.loadJobs
	}
	jobs.count(r, waited)
	all.Add(1)
	bytes.Add(r.Bytes)
	switch r.Status {
	case connector.StatusFailed:
		failed.Add(1)
	case connector.StatusCancelled:
		cancelled.Add(1)
	case connector.StatusDropped:
		c.dropped.Add(1)
	}
}
