package metrics

import "github.com/mooncake-sidecar/sidecar/lookupd/events"

// eventNames label events as vLLM calls them.
var eventNames = map[events.Kind]string{events.Stored: "BlockStored", events.Removed: "BlockRemoved", events.Cleared: "AllBlocksCleared"}

// AddEvents adds the metrics of the stream of KV events. stats is called by each
// scrape, and says whether there is a stream; changes tells how often the store has
// changed.
func (r *Registry) AddEvents(stats func() (events.Stats, bool), changes func() uint64) {
	var (
		told      = counter("kv_events_blocks_total", "Blocks that KV events told of, by event and medium.", "event", "medium")
		batches   = counter("kv_events_batches_total", "Batches of KV events that were published.")
		bytes     = counter("kv_events_bytes_total", "Bytes of them.")
		failed    = counter("kv_events_send_errors_total", "Batches that could not be sent.")
		announced = counter("kv_events_announcements_total", "Times that all blocks of a stream were told anew, by reason.", "reason")
		replays   = counter("kv_events_replays_total", "Requests for missed batches.")
		buffered  = gauge("kv_events_buffered_batches", "Batches that are kept for replay.")
		held      = gauge("kv_events_buffered_bytes", "Bytes of them.")
		behind    = gauge("kv_events_behind_changes", "Changes of the store's memory that are still to be told.")
	)
	r.inner.MustRegister(&source{
		families: []*family{told, batches, bytes, failed, announced, replays, buffered, held, behind},
		collect: func(out sink) {
			s, publishes := stats()
			if !publishes {
				return
			}
			for kind, n := range s.Events {
				out.count(told, n, eventNames[kind.Kind], kind.Medium)
			}
			out.count(batches, s.Batches)
			out.count(bytes, s.Bytes)
			out.count(failed, s.SendErrors)
			for why, n := range s.Announcements {
				out.count(announced, n, string(why))
			}
			out.count(replays, s.Replays)
			out.put(buffered, float64(s.Buffered))
			out.put(held, float64(s.BufferedBytes))
			now := changes()
			out.put(behind, float64(now-min(s.Told, now)))
		},
	})
}
