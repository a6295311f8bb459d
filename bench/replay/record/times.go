package record

import (
	"fmt"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Range and precision of histograms.
const (
	longest = 24 * time.Hour
	digits  = 3
)

// Times is an HDR histogram of durations, to three digits, in microseconds.
type Times struct {
	h *hdr.Histogram
}

// NewTimes is empty.
func NewTimes() *Times {
	return &Times{hdr.New(1, longest.Microseconds(), digits)}
}

// Add counts a duration; one below 0 counts as 0, one above a day as a day.
func (t *Times) Add(d time.Duration) {
	if err := t.h.RecordValue(min(max(d, 0), longest).Microseconds()); err != nil {
		panic("BUG: a value within the histogram's range: " + err.Error())
	}
}

// Count of durations.
func (t *Times) Count() int64 { return t.h.TotalCount() }

// Quantile of the durations, 0 of none.
func (t *Times) Quantile(q float64) time.Duration {
	return time.Duration(t.h.ValueAtQuantile(q*100)) * time.Microsecond
}

// Spread is what a report shows of a histogram, in milliseconds; all is 0 for no
// values.
type Spread struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_ms"`
	Min   float64 `json:"min_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p99.9_ms"`
	Max   float64 `json:"max_ms"`
	// HDR is the histogram itself (HdrHistogram V2, compressed, base64; microseconds),
	// which other tools merge and plot.
	HDR string `json:"hdr"`
}

// Spread reduces the histogram.
func (t *Times) Spread() (Spread, error) {
	if t.Count() == 0 {
		return Spread{}, nil
	}
	encoded, err := t.h.Encode(hdr.V2CompressedEncodingCookieBase)
	if err != nil {
		return Spread{}, fmt.Errorf("encoding a histogram: %w", err)
	}
	ms := func(us int64) float64 { return float64(us) / 1e3 }
	at := func(percent float64) float64 { return ms(t.h.ValueAtQuantile(percent)) }
	return Spread{
		Count: t.Count(), Mean: t.h.Mean() / 1e3, Min: ms(t.h.Min()), P50: at(50), P90: at(90), P95: at(95), P99: at(99), P999: at(99.9), Max: ms(t.h.Max()),
		HDR: string(encoded),
	}, nil
}
