package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// ConductorCalls registers what counts a conductor's calls, of which the names are known,
// and returns what counts one. Others count as "other", so that nobody makes series.
func (r *Registry) ConductorCalls(names []string) func(call string, status int, took time.Duration) {
	times := r.durations("conductor_call_duration_seconds", "Time from a call's arrival to its answer, of HTTP and gRPC.", "call")
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: Prefix + "conductor_calls_total", Help: "Answered calls, by the first digit of their status; gRPC's are told so, too.",
	}, []string{"call", "status"})
	r.inner.MustRegister(answers)
	known := map[string]prometheus.Observer{"other": times.WithLabelValues("other")}
	for _, name := range names {
		known[name] = times.WithLabelValues(name)
	}
	return func(call string, status int, took time.Duration) {
		of, ok := known[call]
		if !ok {
			call, of = "other", known["other"]
		}
		of.Observe(took.Seconds())
		answers.WithLabelValues(call, strconv.Itoa(status/100)+"xx").Inc()
	}
}

// AddConductor adds the metrics of an index and of its streams, which are summed up:
// their names are as many as there are engines. Both are called by each scrape.
func (r *Registry) AddConductor(stats func() contract.Stats, services func() []contract.Status) {
	var (
		streams  = gauge("conductor_streams", "Streams of KV events that are registered, by how much of them is known.", "state")
		blocks   = gauge("conductor_blocks", "Blocks that the index knows.")
		bytes    = gauge("conductor_index_bytes", "Memory that the index takes.")
		most     = gauge("conductor_index_max_bytes", "Memory that it may take; 0 is no bound.")
		queries  = counter("conductor_queries_total", "Queries that were answered.")
		tokens   = counter("conductor_query_tokens_total", "Tokens that queries asked about, and that the best rank of each had.", "result")
		batches  = counter("conductor_batches_total", "Batches of KV events that were applied.")
		gaps     = counter("conductor_gaps_total", "Gaps in streams.")
		restarts = counter("conductor_restarts_total", "Restarts of publishers that were seen.")
		rejected = counter("conductor_rejected_events_total", "Events that were passed over: malformed, or of a kind that is not known.")
		told     = counter("conductor_told_blocks_total", "Blocks that events told of, by what came of it.", "result")
		lost     = counter("conductor_lost_gaps_total", "Gaps that no replay has filled: what was told before them is forgotten.")
		replays  = counter("conductor_replays_total", "Replays that publishers were asked for, and those that were given up for want of an answer.", "result")
		overrun  = counter("conductor_overrun_messages_total", "Messages that came faster than they were taken; they are asked for again.")
		live     = counter("conductor_live_batches_total", "Batches that came as they were published.")
		delay    = counter("conductor_live_batch_delay_seconds_total", "How old they were when they came, all together, by the publishers' clocks and this one.")
		interval = gauge("conductor_snapshot_interval_seconds", "Time between two snapshots of the index.")
		age      = gauge("conductor_snapshot_age_seconds", "Time since the index's snapshot was written, or since this process began.")
		saved    = counter("conductor_snapshots_total", "Snapshots of the index that were written, or could not be.", "result")
	)
	r.inner.MustRegister(&source{
		families: []*family{streams, blocks, bytes, most, queries, tokens, batches, gaps, restarts, rejected, told, lost, replays, overrun, live, delay, interval, age, saved},
		collect: func(out sink) {
			s, all := streamsAtOnce(stats, services)
			out.put(blocks, float64(s.Blocks))
			out.put(bytes, float64(s.Bytes))
			out.put(most, float64(s.MaxBytes))
			out.count(queries, s.Queries)
			out.count(tokens, s.TokensAsked, "asked")
			out.count(tokens, s.TokensMatched, "matched")
			if kept := &s.Snapshots; kept.Interval > 0 {
				out.put(interval, kept.Interval.Seconds())
				out.put(age, kept.Age.Seconds())
				out.count(saved, kept.Written, "written")
				out.count(saved, kept.Failed, "failed")
			}
			sum := s.Left
			states := map[contract.State]int{contract.Connecting: 0, contract.Complete: 0, contract.Incomplete: 0, contract.Silent: 0}
			for _, one := range all {
				states[one.State]++
				sum.Add(&one)
			}
			for state, n := range states {
				out.put(streams, float64(n), state.String())
			}
			out.count(batches, sum.Batches)
			out.count(gaps, sum.Gaps)
			out.count(restarts, sum.Restarts)
			out.count(rejected, sum.Rejected)
			out.count(lost, sum.Lost)
			out.count(replays, sum.Replays, "asked")
			out.count(replays, sum.Unanswered, "unanswered")
			out.count(overrun, sum.Overrun)
			out.count(live, sum.Live)
			out.put(delay, sum.Delay.Seconds())
			for result, n := range map[string]uint64{
				"stored": sum.Blocks.Stored, "removed": sum.Blocks.Removed, "again": sum.Blocks.Again, "reported": sum.Blocks.Reported,
				"unplaced": sum.Blocks.Unplaced, "unknown": sum.Blocks.Unknown, "dropped": sum.Blocks.Dropped, "ignored": sum.Blocks.Ignored,
			} {
				out.count(told, n, result)
			}
		},
	})
}

// streamsAtOnce returns figures and services of one moment: one that leaves in between would be
// counted twice, or not at all, and the next scrape's counters would fall.
func streamsAtOnce(stats func() contract.Stats, services func() []contract.Status) (s contract.Stats, all []contract.Status) {
	for {
		s, all = stats(), services()
		if stats().Leavers == s.Leavers {
			return s, all
		}
	}
}
