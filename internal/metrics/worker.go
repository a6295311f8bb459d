package metrics

import "github.com/mooncake-sidecar/sidecar/worker"

// Label and values of what loads and stores have in common.
const (
	operation      = "operation"
	operationLoad  = "load"
	operationStore = "store"
)

// AddWorker adds the metrics of a worker. stats and storeReady are called by
// each scrape.
func (r *Registry) AddWorker(stats func() worker.Stats, storeReady func() bool) {
	var (
		jobs      = counter("worker_jobs_total", "Answered jobs. A dropped one was never tried, a cancelled one was given up by the engine.", operation, "status")
		failures  = counter("worker_job_failures_total", "Jobs that were not done whole, by the first reason.", operation, "reason")
		chunks    = counter("worker_chunks_total", "Chunks that jobs asked the store for, had there already, and moved.", operation, "result")
		blocks    = counter("worker_failed_blocks_total", "Blocks that loads did not fill; the engine computes them.")
		moved     = counter("worker_bytes_total", "Bytes copied between the engine's memory and the store.", operation)
		waiting   = gauge("worker_queue_jobs", "Jobs that wait.", operation)
		running   = gauge("worker_running_jobs", "Jobs under way.")
		queued    = gauge("worker_queue_bytes", "Memory of the jobs that wait or are under way.")
		cancels   = counter("worker_cancels_total", "Jobs that engines asked to give up.")
		corrupt   = counter("worker_corrupt_chunks_total", "Loaded chunks that did not match their checksum.")
		absent    = counter("worker_absent_chunks_total", "Chunks that had gone between lookup and load.")
		malformed = counter("worker_malformed_frames_total", "Messages that did not parse or named what was never registered.")
		refused   = counter("worker_refused_connections_total", "Connections that were closed unserved.")
		engines   = gauge("worker_engines", "Engine ranks that have a session.")
		ready     = gauge("worker_store_ready", "1 while the store can be reached.")
	)
	r.inner.MustRegister(&source{
		families: []*family{
			jobs, failures, chunks, blocks, moved, waiting, running, queued, cancels, corrupt, absent, malformed, refused, engines, ready,
		},
		collect: func(out sink) {
			s := stats()
			for kind, j := range map[string]*worker.JobStats{operationLoad: &s.LoadJobs, operationStore: &s.StoreJobs} {
				for status, n := range j.ByStatus {
					out.count(jobs, n, kind, status)
				}
				for reason, n := range j.ByReason {
					out.count(failures, n, kind, reason)
				}
				out.count(chunks, j.Asked, kind, "asked")
				out.count(chunks, j.Existing, kind, "existing")
				out.count(chunks, j.Moved, kind, "moved")
				out.count(moved, j.Bytes, kind)
			}
			out.count(blocks, s.LoadJobs.FailedBlocks)
			out.put(waiting, float64(s.Queues.WaitingLoads), operationLoad)
			out.put(waiting, float64(s.Queues.WaitingStores), operationStore)
			out.put(running, float64(s.Queues.Running))
			out.put(queued, float64(s.Queues.Bytes))
			out.put(cancels, float64(s.Cancels))
			out.put(corrupt, float64(s.CorruptChunks))
			out.put(absent, float64(s.AbsentChunks))
			out.put(malformed, float64(s.MalformedFrames))
			out.put(refused, float64(s.RefusedConns))
			out.put(engines, float64(s.Engines))
			out.flag(ready, storeReady())
		},
	})
}

// AddReadiness adds a daemon's readiness. checks returns every check's name with
// whether it is well; it is called by each scrape.
func (r *Registry) AddReadiness(checks func() map[string]bool) {
	ready := gauge("ready", "1 while a check of /readyz is well.", "check")
	r.inner.MustRegister(&source{families: []*family{ready}, collect: func(out sink) {
		for check, well := range checks() {
			out.flag(ready, well, check)
		}
	}})
}
