package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// nativeFactor is the most by which a native bucket's bounds differ: eight
	// buckets for each power of two.
	nativeFactor = 1.1
	// nativeBuckets bounds them; times of microseconds to a minute need 208, and
	// more than these are never in use at once. Beyond, neighbours are joined.
	nativeBuckets = 160
)

// bounds are the classic buckets', in seconds; never written.
var bounds = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30,
}

// durations registers a family of histograms in seconds, with classic and native
// buckets. Counting takes some 35 ns and allocates nothing once a bucket was used.
func (r *Registry) durations(name, help string, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: Prefix + name, Help: help, Buckets: bounds,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets,
	}, labels)
	r.inner.MustRegister(h)
	return h
}

// LookupTimes registers the histogram of lookups and returns what counts in it.
func (r *Registry) LookupTimes() prometheus.Observer {
	return r.durations("lookup_duration_seconds", "Time from a lookup's arrival to its answer.").WithLabelValues()
}

// JobTimes count how long a worker's jobs of a kind took.
type JobTimes struct{ Took, Ask, Move, Wait prometheus.Observer }

// JobTimes registers the histograms of jobs and returns what counts in them.
func (r *Registry) JobTimes() (load, store JobTimes) {
	took := r.durations("worker_job_duration_seconds", "Time from a job's arrival to its result.", operation)
	ask := r.durations("worker_store_call_duration_seconds", "Part of it that the store took to answer.", operation)
	move := r.durations("worker_copy_duration_seconds", "Part of it that copying took, publication included.", operation)
	wait := r.durations("worker_wait_duration_seconds", "Part of it that the job waited to begin and for its turns to copy, and that a store rested.", operation)
	of := func(label string) JobTimes {
		return JobTimes{Took: took.WithLabelValues(label), Ask: ask.WithLabelValues(label), Move: move.WithLabelValues(label), Wait: wait.WithLabelValues(label)}
	}
	return of(operationLoad), of(operationStore)
}

// StoreCallTimes registers the histograms of the named calls of the store's
// clients and returns what counts one.
func (r *Registry) StoreCallTimes(calls ...string) func(call string, took time.Duration) {
	vec := r.durations("store_call_duration_seconds", "Time that the store took to answer a call of a worker.", "call")
	of := map[string]prometheus.Observer{}
	for _, call := range calls {
		of[call] = vec.WithLabelValues(call)
	}
	return func(call string, took time.Duration) { of[call].Observe(took.Seconds()) }
}

// DiskTimes registers the histogram of the disk tier's I/O and returns what
// counts a read and a write.
func (r *Registry) DiskTimes() (read, write func(took time.Duration)) {
	vec := r.durations("store_disk_io_duration_seconds", "Time of one read or write of chunks at the disk tier, failed and late ones included.", operation)
	of := func(label string) func(time.Duration) {
		o := vec.WithLabelValues(label)
		return func(took time.Duration) { o.Observe(took.Seconds()) }
	}
	return of("read"), of("write")
}

// ClusterTimes registers the histogram of calls to the Mooncake cluster and returns
// what counts a question, a put and a get.
func (r *Registry) ClusterTimes() (asked, put, got func(took time.Duration)) {
	vec := r.durations("cluster_call_duration_seconds", "Time of one call to the Mooncake cluster, with its wait for a turn; failed ones included.", operation)
	of := func(label string) func(time.Duration) {
		o := vec.WithLabelValues(label)
		return func(took time.Duration) { o.Observe(took.Seconds()) }
	}
	return of("question"), of("put"), of("get")
}
