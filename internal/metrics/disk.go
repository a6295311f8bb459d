package metrics

import (
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// AddDisk adds the metrics of the disk tier and of what goes between it and
// memory. stats is called by each scrape; without a disk tier there are none.
func (r *Registry) AddDisk(stats func() embedded.Stats) {
	var (
		inService = gauge("store_disk_in_service", "1 while the disk tier is read and written.")
		opened    = counter("store_disk_dropped_total", "Times that the disk tier was taken out of service, for being slow or failing.")
		errors    = counter("store_disk_errors_total", "Failed reads and writes.", "kind")
		late      = counter("store_disk_late_reads_total", "Reads that were not begun because they had waited too long.")
		refused   = counter("store_disk_refused_chunks_total", "Chunks that the disk tier would not take, by reason.", "reason")
		queued    = gauge("store_disk_queue_bytes", "Bytes that wait to be written, or are being read.", "direction")
		moved     = counter("store_migrated_chunks_total", "Chunks that went between memory and disk, or were to, by what became of them.", "direction", "result")
		promoted  = counter("store_promoted_bytes_total", "Bytes that came from disk into memory.")
		hits      = counter("store_disk_hits_total", "Shards that were loaded after they had come from disk for it.")
		scanned   = gauge("store_disk_scan_ratio", "Part of the disk tier's file that was looked through since the start.")
	)
	const down, up = "down", "up"
	r.inner.MustRegister(&source{
		families: []*family{inService, opened, errors, late, refused, queued, moved, promoted, hits, scanned},
		collect: func(out sink) {
			s := stats()
			if s.Disk == nil {
				return
			}
			d, t := s.Disk, &s.Tiers
			out.flag(inService, d.InService)
			out.count(opened, d.Opened)
			for i, n := range d.Errors {
				out.count(errors, n, disk.ErrorKind(i).String())
			}
			out.count(late, d.LateReads)
			for i, n := range d.Refused {
				out.count(refused, n, disk.Refusal(i).String())
			}
			out.count(queued, d.QueuedBytes, down)
			out.count(queued, d.FetchingBytes, up)
			out.count(moved, t.Demoted, down, "written")
			out.count(moved, t.Clean, down, "there_already")
			out.count(moved, t.Returned, down, "used_again")
			out.count(moved, t.Lost, down, "lost")
			out.count(moved, t.Promoted, up, "loaded")
			out.count(moved, t.PromotionsFailed, up, "failed")
			out.count(moved, t.PromotionsRefused, up, "no_room")
			out.count(promoted, t.PromotedBytes)
			out.count(hits, t.Hits)
			ratio := 1.0
			if d.ScanRegions > 0 {
				ratio = float64(d.ScannedRegions) / float64(d.ScanRegions)
			}
			out.put(scanned, ratio)
		},
	})
}
