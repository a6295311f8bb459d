package metrics

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/mooncake-sidecar/sidecar/internal/histogram"
)

// family is a metric's name with its type, help and labels.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newFamily(kind prometheus.ValueType, name, help string, labels []string) *family {
	return &family{desc: prometheus.NewDesc(Prefix+name, help, labels, nil), kind: kind}
}

// counter is a family that only grows; its name ends in _total.
func counter(name, help string, labels ...string) *family {
	return newFamily(prometheus.CounterValue, name, help, labels)
}

// gauge is a family that goes up and down.
func gauge(name, help string, labels ...string) *family {
	return newFamily(prometheus.GaugeValue, name, help, labels)
}

// durations is a family of histograms, in seconds.
func durations(name, help string, labels ...string) *family {
	return newFamily(prometheus.UntypedValue, name, help, labels)
}

// sink takes the metrics of one scrape.
type sink chan<- prometheus.Metric

func (s sink) put(f *family, value float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
}

func (s sink) count(f *family, value uint64, labels ...string) { s.put(f, float64(value), labels...) }

// flag shows a truth as 1.
func (s sink) flag(f *family, value bool, labels ...string) {
	n := 0.0
	if value {
		n = 1
	}
	s.put(f, n, labels...)
}

func (s sink) durations(f *family, h *histogram.Snapshot, labels ...string) {
	s <- newDurations(f.desc, h, labels)
}

// durationsMetric is a histogram with classic and native buckets, which the
// client's library makes only of histograms of its own.
type durationsMetric struct{ classic, native prometheus.Metric }

func newDurations(desc *prometheus.Desc, h *histogram.Snapshot, labels []string) prometheus.Metric {
	classic, below := map[float64]uint64{}, uint64(0)
	for i, bound := range histogram.Bounds() {
		below += h.Classic[i]
		classic[bound.Seconds()] = below
	}
	native := map[int]int64{}
	for i := range h.Native {
		if n := h.Native[i]; n > 0 {
			native[histogram.FirstIndex+i] = int64(n)
		}
	}
	n, err := prometheus.NewConstNativeHistogram(desc, h.Count, h.Sum.Seconds(), native, nil, 0, histogram.Schema, 0, time.Time{}, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, fmt.Errorf("BUG: %w", err))
	}
	return durationsMetric{classic: prometheus.MustNewConstHistogram(desc, h.Count, h.Sum.Seconds(), classic, labels...), native: n}
}

// Desc implements prometheus.Metric.
func (m durationsMetric) Desc() *prometheus.Desc { return m.classic.Desc() }

// Write implements prometheus.Metric.
func (m durationsMetric) Write(out *dto.Metric) error {
	var native dto.Metric
	if err := m.native.Write(&native); err != nil {
		return err
	}
	if err := m.classic.Write(out); err != nil {
		return err
	}
	to, from := out.GetHistogram(), native.GetHistogram()
	to.Schema, to.ZeroThreshold, to.ZeroCount = from.Schema, from.ZeroThreshold, from.ZeroCount
	to.PositiveSpan, to.PositiveDelta = from.PositiveSpan, from.PositiveDelta
	return nil
}

// source is a collector of one snapshot.
type source struct {
	families []*family
	collect  func(sink)
}

// Describe implements prometheus.Collector.
func (s *source) Describe(out chan<- *prometheus.Desc) {
	for _, f := range s.families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (s *source) Collect(out chan<- prometheus.Metric) { s.collect(out) }
