package metrics

import (
	"math"
	"strconv"

	"github.com/mooncake-sidecar/sidecar/internal/missratio"
)

// AddMissRatio adds the miss-ratio curve of the store: what other amounts of
// memory would have brought. points is called by each scrape.
func (r *Registry) AddMissRatio(points func() []missratio.Point) {
	const memory = "memory" // a multiple of the store's, as 0.5x
	var (
		ratio  = gauge("store_miss_ratio", "Share of the chunks asked for of late that this much memory would have missed; estimated from a sample.", memory)
		chunks = counter("store_curve_chunks_total", "Chunks asked for, as the sample tells.", memory)
		hits   = counter("store_curve_hits_total", "Chunks of them that this much memory would have had.", memory)
	)
	r.inner.MustRegister(&source{families: []*family{ratio, chunks, hits}, collect: func(out sink) {
		for _, p := range points() {
			factor := strconv.FormatFloat(p.Factor, 'g', -1, 64) + "x"
			if !math.IsNaN(p.HitRatio) {
				out.put(ratio, 1-p.HitRatio, factor)
			}
			out.put(chunks, p.Chunks, factor)
			out.put(hits, p.Hits, factor)
		}
	}})
}
