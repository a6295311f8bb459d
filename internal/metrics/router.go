package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/router"
)

// RouterTimes registers what counts a router's requests one by one, and returns it. Paths
// are the router's own.
func (r *Registry) RouterTimes() router.Observer {
	sent := r.durations("router_added_duration_seconds", "Time that a request was held before it went to its first engine: the wait for a place, token ids, the decision.").WithLabelValues()
	first := r.durations("router_first_token_duration_seconds", "Time from a request's arrival to the first bytes of its stream.").WithLabelValues()
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: Prefix + "router_answers_total", Help: "Answered requests, by the first digit of their status; none: their client had gone.",
	}, []string{"path", "status"})
	r.inner.MustRegister(answers)
	return router.Observer{
		Sent:       func(took time.Duration) { sent.Observe(took.Seconds()) },
		FirstToken: func(took time.Duration) { first.Observe(took.Seconds()) },
		Answered: func(path string, status int) {
			class := "none"
			if status > 0 {
				class = strconv.Itoa(status/100) + "xx"
			}
			answers.WithLabelValues(path, class).Inc()
		},
	}
}

// AddRouter adds the metrics of a router and of the engines behind it, which are those of
// the configuration. Both are called by each scrape.
func (r *Registry) AddRouter(stats func() router.Stats, engines func() []fleet.View) {
	r.addRouter(stats)
	r.addEngines(engines)
}

func (r *Registry) addRouter(stats func() router.Stats) {
	var (
		decisions    = counter("router_decisions_total", "Requests for which an engine was looked for.")
		flight       = gauge("router_requests_in_flight", "Requests that have a place.")
		waiting      = gauge("router_requests_waiting", "Requests that wait for one.")
		refused      = counter("router_refused_requests_total", "Requests that were turned away: no_engine and unknown_model with 503 and 404, the others with 429.", "reason")
		retries      = counter("router_retries_total", "Engines that did not answer, or were overloaded, so that another one was asked.")
		broken       = counter("router_broken_answers_total", "Answers that their engine broke off in the middle.")
		left         = counter("router_left_clients_total", "Clients that were gone before their answer's end.")
		copies       = counter("router_copies_total", "Copies of prefixes that many ask for.", "result")
		late         = counter("router_late_handovers_total", "Requests that went to the decode engine before the index said that their prompt is stored.")
		tokens       = counter("router_token_questions_total", "Prompts whose token ids were known, were asked for, were waited for with others', could not be got.", "result")
		tokenBytes   = gauge("router_token_cache_bytes", "Memory of the token ids that are remembered.")
		contexts     = gauge("router_contexts", "Contexts that are kept.")
		reservations = gauge("router_reservations", "Decisions of which a gateway has not said what became of them.")
	)
	r.inner.MustRegister(&source{
		families: []*family{decisions, flight, waiting, refused, retries, broken, left, copies, late, tokens, tokenBytes, contexts, reservations},
		collect: func(out sink) {
			s := stats()
			out.count(decisions, s.Decisions)
			out.put(flight, float64(s.InFlight))
			out.put(waiting, float64(s.Waiting))
			for reason, n := range map[string]uint64{
				"full": s.Full, "late_first_token": s.RefusedLate, "decode_busy": s.RefusedBusy, "no_engine": s.Nobody, "unknown_model": s.Unserved,
			} {
				out.count(refused, n, reason)
			}
			out.count(retries, s.Retries)
			out.count(broken, s.Broken)
			out.count(left, s.Left)
			for result, n := range map[string]uint64{"made": s.Copies, "failed": s.CopiesFailed, "dropped": s.CopiesDropped} {
				out.count(copies, n, result)
			}
			out.count(late, s.HandoversLate)
			for result, n := range map[string]uint64{"known": s.TokenHits, "asked": s.TokensAsked, "joined": s.TokensJoined, "failed": s.TokensFailed} {
				out.count(tokens, n, result)
			}
			out.put(tokenBytes, float64(s.TokenBytes))
			out.put(contexts, float64(s.Contexts))
			out.put(reservations, float64(s.Reservations))
		},
	})
}

// States of an engine, each engine in one of them.
const (
	engineInUse    = "in_use"
	engineDraining = "draining"
	engineAsleep   = "asleep"
	engineOut      = "out"
)

func engineState(v *fleet.View) string {
	switch {
	case v.InUse:
		return engineInUse
	case !v.Up:
		return engineOut
	case v.Draining:
		return engineDraining
	}
	return engineAsleep
}

func (r *Registry) addEngines(engines func() []fleet.View) {
	var (
		state    = gauge("router_engine_state", "1 for the state that an engine is in, by the router's polls and connections.", "engine", "state")
		requests = gauge("router_engine_requests", "Requests of the router that an engine has.", "engine")
		others   = gauge("router_engine_other_requests", "Requests that an engine has besides.", "engine")
		queue    = gauge("router_engine_queue_seconds", "Time that the prompts before a new one are expected to take, of the engine's rank where that is longest.", "engine")
		begun    = counter("router_engine_requests_total", "Requests that an engine was given.", "engine")
		failures = counter("router_engine_failures_total", "Requests for which nobody listened at an engine, connections that broke, polls that failed.", "engine", "kind")
		outages  = counter("router_engine_outages_total", "How often an engine went out.", "engine")
	)
	r.inner.MustRegister(&source{
		families: []*family{state, requests, others, queue, begun, failures, outages},
		collect: func(out sink) {
			for _, v := range engines() {
				is := engineState(&v)
				for _, one := range [...]string{engineInUse, engineDraining, engineAsleep, engineOut} {
					out.flag(state, one == is, v.Name, one)
				}
				ours, theirs, longest := 0, 0, 0.0
				for i := range v.Ranks {
					rank := &v.Ranks[i]
					ours += rank.OurRequests
					theirs += rank.OtherPrompts + rank.OtherSequences
					longest = max(longest, rank.QueueSeconds)
				}
				out.put(requests, float64(ours), v.Name)
				out.put(others, float64(theirs), v.Name)
				out.put(queue, longest, v.Name)
				out.count(begun, v.Counts.Begun, v.Name)
				for kind, n := range map[string]uint64{"refused": v.Counts.Refused, "broken": v.Counts.Broken, "poll": v.Counts.FailedPolls} {
					out.count(failures, n, v.Name, kind)
				}
				out.count(outages, v.Counts.Outages, v.Name)
			}
		},
	})
}
