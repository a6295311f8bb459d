package metrics

import "github.com/mooncake-sidecar/sidecar/lookupd"

// AddLookupd adds the metrics of the lookup role. stats is called by each scrape.
func (r *Registry) AddLookupd(stats func() lookupd.Stats) {
	var (
		lookups  = counter("lookups_total", "Answered lookups. A hit is a length above 0.", "model", "result")
		pending  = counter("lookups_pending_total", "Lookups that may be longer when asked again.", "model")
		more     = counter("lookups_more_total", "Lookups that named few of their hashes and were asked for more of them.", "model")
		asked    = counter("lookup_query_tokens_total", "Tokens that lookups asked about.", "model")
		hit      = counter("lookup_hit_tokens_total", "Tokens of them that were stored.", "model")
		leases   = counter("lookup_leases_total", "Leases that lookups granted.", "model")
		resets   = counter("lookup_resets_total", "Namespaces emptied at an engine's request.", "model")
		failed   = counter("lookup_errors_total", "Requests on lookup sockets that were answered with an error, which means a hit of 0.", "reason")
		engines  = gauge("engines", "Engines that have a lookup socket.")
		sessions = gauge("sessions", "Open sessions, of engines, workers and probes.")
		refused  = counter("sessions_refused_total", "Sessions that were refused before they were welcome.")
		broken   = counter("sessions_broken_total", "Sessions that ended by a fault of the peer.")
	)
	r.inner.MustRegister(&source{
		families: []*family{lookups, pending, more, asked, hit, leases, resets, failed, engines, sessions, refused, broken},
		collect: func(out sink) {
			s := stats()
			for model, c := range s.Models {
				out.count(lookups, c.Lookups-min(c.Misses, c.Lookups), model, "hit")
				out.count(lookups, c.Misses, model, "miss")
				out.count(pending, c.Pending, model)
				out.count(more, c.More, model)
				out.count(asked, c.QueryTokens, model)
				out.count(hit, c.HitTokens, model)
				out.count(leases, c.Leases, model)
				out.count(resets, c.Resets, model)
			}
			for reason, n := range s.Total.Errors {
				out.count(failed, n, lookupd.Reason(reason).String())
			}
			out.put(engines, float64(len(s.Engines)))
			out.put(sessions, float64(s.Sessions))
			out.count(refused, s.SessionsRefused)
			out.count(broken, s.SessionsBroken)
		},
	})
}
