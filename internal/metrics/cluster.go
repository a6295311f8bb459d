package metrics

import (
	"strconv"

	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
)

// AddCluster adds the metrics of the Mooncake cluster below the store and of what
// goes between it and memory. Both functions are called by each scrape.
func (r *Registry) AddCluster(stats func() embedded.Stats, far func() level.Stats) {
	var (
		inService = gauge("cluster_in_service", "1 while the Mooncake cluster answers.")
		outages   = counter("cluster_outages_total", "Times that the cluster's master began not to answer.")
		starts    = counter("cluster_process_starts_total", "Times that Mooncake's client became ready, in a side process or from the library.")
		asked     = counter("cluster_lookups_total", "Chunks that the cluster was asked for, by answer.", "result")
		questions = counter("cluster_questions_total", "Calls that asked for chunks, by result.", "result")
		doubts    = counter("cluster_doubts_total", "Times that chunks were not there whole as others of their chain led to expect; all keys are asked for a while then.")
		moved     = counter("cluster_chunks_total", "Chunks that went to and from the cluster, by what became of them.", "direction", "result")
		refused   = counter("cluster_refused_chunks_total", "Chunks that were not put, by reason.", "reason")
		bytes     = counter("cluster_bytes_total", "Bytes of chunks that went to and from the cluster.", "direction")
		queued    = gauge("cluster_queue_bytes", "Bytes that wait to be put or got, or are.", "direction")
		codes     = counter("cluster_errors_total", "Failures of single keys, by Mooncake's code.", "code")
		renewed   = counter("cluster_renewed_chunks_total", "Chunks in use here that the cluster was asked for, so that it keeps them; gone ones are put again.", "result")
		promised  = gauge("cluster_promise_bytes", "Bytes of the cluster's chunks that one lookup may be promised at most: a quarter of the store.")
		hits      = counter("cluster_hits_total", "Shards that were loaded after they had come from the cluster for it.")
		linked    = gauge("cluster_events_linked", "1 while there is a connection to the KV events of the cluster's master.")
		events    = counter("cluster_events_total", "KV events of the cluster's master: of shards that were stored and removed, of others' objects, of objects without a key.", "kind")
		forgotten = counter("cluster_events_forgotten_total", "Times that all which the master's KV events had told was forgotten, by reason: a gap, another master, what the cluster did not have.", "reason")
		told      = counter("cluster_events_lookups_total", "Looks at what is known of the cluster that knew something by its master's KV events alone.")
	)
	const put, get = "put", "get"
	r.inner.MustRegister(&source{
		families: []*family{inService, outages, starts, asked, questions, doubts, moved, refused, bytes, queued, codes, renewed, promised, hits, linked, events, forgotten, told},
		collect: func(out sink) {
			s, f := stats().Tiers.Cluster, far()
			out.flag(inService, f.InService)
			out.count(outages, f.Client.Outages)
			out.count(starts, f.Health.Starts)
			out.count(asked, f.Found, "present")
			out.count(asked, f.Asked-f.Found, "absent")
			out.count(questions, f.Questions-f.AskFailed, "answered")
			out.count(questions, f.AskFailed, "failed")
			out.count(doubts, f.Doubts)
			out.count(moved, f.PutChunks, put, "stored")
			out.count(moved, f.PutsFailed-f.NoRoom, put, "failed")
			out.count(moved, f.NoRoom, put, "no_room")
			out.count(moved, f.GotChunks, get, "loaded")
			out.count(moved, f.GetsFailed, get, "failed")
			for i, n := range f.Refused {
				out.count(refused, n, level.Refusal(i).String())
			}
			out.count(bytes, f.Client.PutBytes, put)
			out.count(bytes, f.Client.GetBytes, get)
			out.count(queued, f.QueuedBytes, put)
			out.count(queued, f.FetchingBytes, get)
			for code, n := range f.Client.Codes {
				out.count(codes, n, strconv.Itoa(int(code)))
			}
			out.count(renewed, f.Renewed-f.RenewedLate, "there")
			out.count(renewed, f.RenewedLate, "gone")
			out.put(promised, float64(s.PromiseBytes))
			out.count(hits, s.Hits)
			out.flag(linked, f.Events.Linked)
			out.count(events, f.Events.Stored, "stored")
			out.count(events, f.Events.Removed, "removed")
			out.count(events, f.Events.Foreign, "foreign")
			out.count(events, f.Events.Keyless, "keyless")
			for i, n := range f.Events.Forgotten {
				out.count(forgotten, n, level.Oblivion(i).String())
			}
			out.count(told, f.Events.Lookups)
		},
	})
}
