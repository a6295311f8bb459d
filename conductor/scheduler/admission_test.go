package scheduler

import (
	"testing"
	"time"
)

// known is a forecast that was written down.
type known struct{ staying, arriving int }

func (k known) Staying(time.Duration, time.Duration) int { return k.staying }
func (k known) Arriving(time.Duration) int               { return k.arriving }

// TestAdmission: who is refused, when, and for what. The least loaded of two decode
// instances has 5 sequences and 5,000 tokens; with the request's 1,000 an iteration
// takes 12 ms. The mean context is 2,000.
func TestAdmission(t *testing.T) {
	for name, c := range map[string]struct {
		admission Admission
		ttft, tbt time.Duration
		forecast  known
		want      Reason
	}{
		"all":                             {AdmitAll, 1, 1, known{}, Accepted},
		"first token in time":             {AdmitBaseline, ms(1000), 0, known{}, Accepted},
		"first token late":                {AdmitBaseline, ms(999), 0, known{}, LateFirstToken},
		"early, first token late":         {AdmitEarly, ms(999), 0, known{}, LateFirstToken},
		"no objectives":                   {AdmitEarly, 0, 0, known{}, Accepted},
		"baseline looks at decode later":  {AdmitBaseline, 0, ms(1), known{}, Accepted},
		"early, fits":                     {AdmitEarly, 0, ms(12), known{}, Accepted},
		"early, does not":                 {AdmitEarly, 0, ms(11), known{}, DecodeBusy},
		"prediction: they will be gone":   {AdmitPrediction, 0, ms(3), known{0, 1}, Accepted},    // 1 each, 2000 tokens
		"prediction: they come":           {AdmitPrediction, 0, ms(17), known{2, 9}, DecodeBusy}, // 6 each: 18 ms
		"prediction: just":                {AdmitPrediction, 0, ms(18), known{2, 9}, Accepted},   //
		"prediction: between two":         {AdmitPrediction, 0, ms(16), known{2, 8}, DecodeBusy}, // 5.5 each: 16.5 ms
		"full: the same with its slack":   {AdmitFull, 0, ms(15), known{2, 8}, Accepted},         // up to 16.5 ms
		"full: more than slack":           {AdmitFull, 0, ms(14), known{2, 8}, DecodeBusy},       //
		"prediction still minds the TTFT": {AdmitPrediction, ms(999), ms(99), known{}, LateFirstToken},
	} {
		s := newScheduler(t, func(o *Options) { o.Admission = c.admission })
		r := request()
		r.TTFT, r.TBT = c.ttft, c.tbt
		f := &Facts{Prefill: make([]Prefiller, 1), Decode: []Decoder{{Sequences: 7, ContextTokens: 19000}, {Sequences: 5, ContextTokens: 5000}}, Forecast: c.forecast}
		d := s.Decide(r, f)
		if d.Refused != c.want || d.Decode != 1 || d.TBT != ms(12) {
			t.Errorf("%s: %v, decode on %d in %v; want %v, on 1 in 12ms", name, d.Refused, d.Decode, d.TBT, c.want)
		}
	}
}

// TestLateCheck: the second look, when the prefill is done.
func TestLateCheck(t *testing.T) {
	r := request()
	r.TBT = ms(10)
	for _, c := range []struct {
		admission Admission
		expected  time.Duration
		want      Reason
	}{{AdmitAll, ms(11), Accepted}, {AdmitBaseline, ms(10), Accepted}, {AdmitBaseline, ms(11), DecodeBusy}, {AdmitPrediction, ms(11), DecodeBusy}} {
		s := newScheduler(t, func(o *Options) { o.Admission = c.admission })
		if got := s.AdmitDecode(r, c.expected); got != c.want {
			t.Errorf("%s at %v: %v, want %v", c.admission, c.expected, got, c.want)
		}
	}
}

// TestDecodeAffinity: who holds the most is taken as far as the objective and the
// least loaded instance allow.
func TestDecodeAffinity(t *testing.T) {
	all := []Decoder{{Sequences: 1}, {Sequences: 8, CachedBlocks: 3}, {Sequences: 30, CachedBlocks: 9}}
	for _, c := range []struct {
		affinity float64
		tbt      time.Duration
		want     int
	}{{0, 0, 0}, {99, 0, 2}, {99, ms(10), 1}, {99, ms(3), 0}, {3, 0, 1}, {.1, 0, 0}} {
		s := newScheduler(t, func(o *Options) { o.DecodeAffinity = c.affinity })
		r := request()
		r.TBT = c.tbt
		if got, _ := s.Decoder(r, all); got != c.want {
			t.Errorf("affinity %v below %v: %d, want %d", c.affinity, c.tbt, got, c.want)
		}
	}
}

func TestReasonsHaveNames(t *testing.T) {
	for r, want := range map[Reason]string{Accepted: "accepted", LateFirstToken: "late-first-token", DecodeBusy: "decode-busy", NoPrefiller: "no-prefiller", 99: "unknown"} {
		if r.String() != want {
			t.Errorf("%d is %q, want %q", r, r, want)
		}
	}
}
