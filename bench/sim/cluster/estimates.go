package cluster

import (
	"math"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
)

// estimates are the scheduler's costs: the model's, wrong by a random factor where
// that is asked for.
type estimates struct{ *cluster }

func (e *estimates) wrong() float64 {
	if e.config.EstimateError == 0 {
		return 1
	}
	return math.Exp(e.config.EstimateError * e.noise.NormFloat64())
}

// Prefill implements scheduler.Costs.
func (e *estimates) Prefill(tokens, cached int) time.Duration {
	return model.Duration(e.wrong() * e.config.Costs.Latency(tokens, cached))
}

// Work implements scheduler.Costs.
func (e *estimates) Work(tokens, cached int) time.Duration {
	return model.Duration(e.config.Costs.GPU(tokens, cached))
}

// Transfer implements scheduler.Costs.
func (e *estimates) Transfer(tokens int) time.Duration {
	if e.config.Pooled {
		return 0
	}
	return model.Duration(e.config.Costs.Transfer(tokens))
}

// Iteration implements scheduler.Costs.
func (e *estimates) Iteration(sequences int, contextTokens int64) time.Duration {
	return model.Duration(e.config.Costs.Iteration(sequences, contextTokens))
}

// forecast implements scheduler.Forecast.
type forecast struct{ *cluster }

// Staying implements scheduler.Forecast.
func (f *forecast) Staying(in, age time.Duration) int {
	n := 0
	for _, d := range f.decode {
		n += d.Younger(f.queue.Now() + in - age)
	}
	return n
}

// Arriving implements scheduler.Forecast.
func (f *forecast) Arriving(in time.Duration) int {
	n, by := 0, f.queue.Now()+in
	for i := range f.prefill {
		for _, first := range f.prefill[i].firsts {
			if first <= by {
				n++
			}
		}
	}
	return n
}
