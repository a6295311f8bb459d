package scheduler

import (
	"testing"
	"time"
)

// TestSlowness: an instance that is slower takes longer for what is computed there, and
// waits no longer.
func TestSlowness(t *testing.T) {
	s := newScheduler(t, nil)
	f := &Facts{
		Prefill: []Prefiller{{Queue: ms(100), Slowness: 3}, {Queue: ms(900)}},
		Decode:  []Decoder{{Slowness: 10}, {Sequences: 5}},
	}
	d := s.Decide(request(), f)
	if d.Prefill != 1 || d.Terms[0].TTFT != ms(100+3000) || d.Terms[0].Work != ms(3000) || d.Terms[1].TTFT != ms(1900) {
		t.Errorf("%+v: want instance 1, which is not slower", d)
	}
	if d.Decode != 1 || d.TBT != ms(6+1) {
		t.Errorf("decodes at %d in %v, want at 1 in 7 ms", d.Decode, d.TBT)
	}
}

// TestPredictionOfSlowInstances: what is expected later is of their mean slowness.
func TestPredictionOfSlowInstances(t *testing.T) {
	expected := func(slow float64) time.Duration {
		s := newScheduler(t, func(o *Options) { o.Admission = AdmitPrediction })
		f := &Facts{Prefill: []Prefiller{{}}, Decode: []Decoder{{Slowness: slow}, {}}, Forecast: nobody{}}
		return s.predicted(f, ms(1))
	}
	if once, thrice := expected(1), expected(3); thrice != 2*once || once == 0 {
		t.Errorf("%v with one of two three times as slow, %v without; want twice as much", thrice, once)
	}
}

// nobody forecasts an empty cluster but for two sequences.
type nobody struct{}

func (nobody) Staying(time.Duration, time.Duration) int { return 1 }
func (nobody) Arriving(time.Duration) int               { return 0 }
