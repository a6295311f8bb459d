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
	)
	const put, get = "put", "get"
	r.inner.MustRegister(&source{
		families: []*family{inService, outages, starts, asked, questions, doubts, moved, refused, bytes, queued, codes, renewed, promised, hits},
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
		},
	})
}
