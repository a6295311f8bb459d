package metrics

import "github.com/prometheus/client_golang/prometheus"

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
