package cluster

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/stats"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

// Objectives are what a request must keep to count as good.
type Objectives struct{ TTFT, TBT time.Duration }

// Paper are the papers' objectives.
func Paper() Objectives { return Objectives{TTFT: 30 * time.Second, TBT: 100 * time.Millisecond} }

// Summary is a run in numbers. Times are in seconds. Requests that were refused
// are in Requests and the counts only.
type Summary struct {
	Requests     int     `json:"requests"`
	MeanTTFT     float64 `json:"mean_ttft_seconds"`
	P50TTFT      float64 `json:"p50_ttft_seconds"`
	P90TTFT      float64 `json:"p90_ttft_seconds"`
	P99TTFT      float64 `json:"p99_ttft_seconds"`
	Within5      float64 `json:"ttft_within_5s"`
	Within10     float64 `json:"ttft_within_10s"`
	Within30     float64 `json:"ttft_within_30s"`
	MeanGPU      float64 `json:"mean_gpu_seconds"`
	MeanQueue    float64 `json:"mean_queue_seconds"`
	MeanHandover float64 `json:"mean_handover_seconds"`
	HitRatio     float64 `json:"block_hit_ratio"`
	// TokenHitRatio counts tokens that were not computed.
	TokenHitRatio float64 `json:"token_hit_ratio"`
	P10TBT        float64 `json:"p10_tbt_seconds"`
	P50TBT        float64 `json:"p50_tbt_seconds"`
	P90TBT        float64 `json:"p90_tbt_seconds"`
	MeanTBT       float64 `json:"mean_tbt_seconds"`
	Within100     float64 `json:"tbt_within_100ms"`
	Within200     float64 `json:"tbt_within_200ms"`
	Within300     float64 `json:"tbt_within_300ms"`
	Refused       int     `json:"refused"`
	RefusedFirst  int     `json:"refused_for_first_token"`
	RefusedEarly  int     `json:"refused_for_decode_early"`
	RefusedLate   int     `json:"refused_for_decode_late"`
	WastedGPU     float64 `json:"wasted_prefill_gpu_seconds"`
	// Good is the share of all requests that kept the objectives, Goodput such
	// requests a second of the run.
	Good    float64 `json:"good"`
	Goodput float64 `json:"goodput_per_second"`
	// BusyDeviation is the deviation of the share of busy prefill nodes, and
	// LoadCorrelation how that goes with the decode load.
	BusyDeviation   float64 `json:"busy_prefill_deviation"`
	LoadCorrelation float64 `json:"load_correlation"`
	DecodeLoad      float64 `json:"mean_decode_iteration_seconds"`
	Transfers       int     `json:"transfers"`
	Replicas        int     `json:"replicas"`
	TransferGB      float64 `json:"transfer_gigabytes"`
	// HandoverGB went to decode nodes, SavedGB were there.
	HandoverGB float64 `json:"handover_gigabytes"`
	SavedGB    float64 `json:"saved_handover_gigabytes"`
}

// Summarize reduces a result.
func Summarize(r *Result, objectives Objectives) Summary {
	s := Summary{Requests: len(r.Outcomes), Transfers: r.Transfers, Replicas: r.Replicas, TransferGB: float64(r.TransferBytes) / 1e9, HandoverGB: float64(r.HandoverBytes) / 1e9, SavedGB: float64(r.SavedHandoverBytes) / 1e9}
	var ttft, tbt, gpu, queue, handover []float64
	var good, blocks, hits, tokens, hitTokens int
	var last time.Duration
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		last = max(last, o.Arrival)
		switch o.Fate {
		case RefusedFirst:
			s.RefusedFirst++
			continue
		case RefusedDecode:
			s.RefusedEarly++
			continue
		case RefusedLate:
			s.RefusedLate++
			s.WastedGPU += o.GPU.Seconds()
			continue
		case Served:
		}
		ttft = append(ttft, o.TTFT.Seconds())
		gpu = append(gpu, o.GPU.Seconds())
		queue = append(queue, o.Queue.Seconds())
		handover = append(handover, o.Handover.Seconds())
		blocks += o.Blocks
		hits += o.HitBlocks
		tokens += o.InputTokens
		hitTokens += min(o.HitBlocks*workload.BlockTokens, o.InputTokens-1)
		if o.TBT > 0 {
			tbt = append(tbt, o.TBT.Seconds())
		}
		if o.TTFT <= objectives.TTFT && o.TBT <= objectives.TBT {
			good++
		}
	}
	s.Refused = s.RefusedFirst + s.RefusedEarly + s.RefusedLate
	s.MeanTTFT, s.MeanGPU, s.MeanQueue, s.MeanHandover = stats.Mean(ttft), stats.Mean(gpu), stats.Mean(queue), stats.Mean(handover)
	s.P50TTFT, s.P90TTFT, s.P99TTFT = stats.Quantile(ttft, .5), stats.Quantile(ttft, .9), stats.Quantile(ttft, .99)
	s.Within5, s.Within10, s.Within30 = stats.Within(ttft, 5), stats.Within(ttft, 10), stats.Within(ttft, 30)
	s.MeanTBT, s.P10TBT, s.P50TBT, s.P90TBT = stats.Mean(tbt), stats.Quantile(tbt, .1), stats.Quantile(tbt, .5), stats.Quantile(tbt, .9)
	s.Within100, s.Within200, s.Within300 = stats.Within(tbt, .1), stats.Within(tbt, .2), stats.Within(tbt, .3)
	s.HitRatio, s.TokenHitRatio = stats.Ratio(float64(hits), float64(blocks)), stats.Ratio(float64(hitTokens), float64(tokens))
	s.Good = stats.Ratio(float64(good), float64(s.Requests))
	s.Goodput = stats.Ratio(float64(good), last.Seconds())
	s.loads(r.Samples)
	return s
}

func (s *Summary) loads(samples []Sample) {
	var busy, load []float64
	for _, sample := range samples {
		busy, load = append(busy, sample.BusyPrefill), append(load, sample.DecodeLoad)
	}
	s.BusyDeviation, s.LoadCorrelation, s.DecodeLoad = stats.Deviation(busy), stats.Correlation(busy, load), stats.Mean(load)
}
