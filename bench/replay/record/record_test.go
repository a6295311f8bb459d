package record

import (
	"errors"
	"testing"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
)

const unit = time.Millisecond

func TestGaps(t *testing.T) {
	for _, test := range []struct {
		name          string
		at            []time.Duration
		n             []int
		mean, longest time.Duration
		gaps          int
	}{
		{"no token", nil, nil, 0, 0, 0},
		{"one token", []time.Duration{5}, []int{1}, 0, 0, 0},
		{"two", []time.Duration{5, 9}, []int{1, 1}, 4, 4, 1},
		{"two at once", []time.Duration{5, 9}, []int{2, 2}, 4, 4, 3},
		{"eleven gaps have a tenth of two", []time.Duration{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 19, 49}, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 20, 30, 11},
	} {
		var g Gaps
		for i := range test.at {
			g.Add(test.at[i], test.n[i])
		}
		if mean, longest := g.Tail(); mean != test.mean || longest != test.longest || len(g.gaps) != test.gaps {
			t.Errorf("%s: %d, %d of %d; want %d, %d of %d", test.name, mean, longest, len(g.gaps), test.mean, test.longest, test.gaps)
		}
	}
}

func TestTimes(t *testing.T) {
	times := NewTimes()
	if spread, err := times.Spread(); err != nil || spread != (Spread{}) {
		t.Errorf("of nothing: %+v, %v", spread, err)
	}
	for i := 1; i <= 1000; i++ {
		times.Add(time.Duration(i) * unit)
	}
	spread, err := times.Spread()
	if err != nil {
		t.Fatal(err)
	}
	near := func(got, want float64) bool { return got > want*.998 && got < want*1.002 }
	if spread.Count != 1000 || !near(spread.Mean, 500.5) || !near(spread.Min, 1) || !near(spread.P50, 500) || !near(spread.P90, 900) || !near(spread.P99, 990) || !near(spread.P999, 999) || !near(spread.Max, 1000) {
		t.Errorf("%+v", spread)
	}
	again, err := hdr.Decode([]byte(spread.HDR))
	if err != nil || !again.Equals(times.h) {
		t.Errorf("the histogram's text is another histogram: %v", err)
	}
	times.Add(-time.Hour)
	times.Add(100 * time.Hour)
	if spread, err := times.Spread(); err != nil || spread.Min != 0 || !near(spread.Max, 24*3600e3) {
		t.Errorf("beyond the range: %+v, %v", spread, err)
	}
}

func TestSummary(t *testing.T) {
	r := NewRecorder(SLO{TTFT: 100 * unit, TBT: 20 * unit})
	// Times are whole numbers of the unit.
	in := func(units time.Duration) time.Duration { return time.Duration(int64(units) * int64(unit)) }
	add := func(o Outcome, at ...time.Duration) {
		var g Gaps
		for _, token := range at {
			g.Add(in(token), 1)
		}
		o.Due, o.Sent, o.First, o.End = in(o.Due), in(o.Sent), Never, in(o.End)
		if len(at) > 0 {
			o.First = in(at[0])
		}
		o.OutputTokens = len(at)
		r.Add(&o, &g)
	}
	// Keeps both; as expected.
	add(Outcome{Line: 2, Due: 1000, Sent: 1000, End: 1070, PromptTokens: 64, CachedTokens: 32, Must: 32, May: 48, InOrder: 32}, 1050, 1070)
	// Late by its due time though not by its sending; too few.
	add(Outcome{Line: 1, Due: 1000, Sent: 1100, End: 1150, PromptTokens: 64, CachedTokens: 0, Must: 16, May: 16, InOrder: 16}, 1150)
	// Slow between tokens; too many.
	add(Outcome{Line: 3, Due: 1000, Sent: 1000, End: 1080, PromptTokens: 64, CachedTokens: 48, Must: 0, May: 32, InOrder: 0}, 1050, 1080)
	// Untold.
	add(Outcome{Line: 4, Due: 1000, Sent: 1000, End: 3000, PromptTokens: 64, CachedTokens: client.Unknown}, 3000)
	add(Outcome{Line: 5, Due: 1500, Sent: 1500, End: 1501, Err: &client.Error{Kind: client.CutOff, Err: errors.New("x")}})
	add(Outcome{Line: 6, Due: 1500, Sent: 1500, End: 1501, Err: &client.Error{Kind: client.Refused, Err: errors.New("x")}})
	add(Outcome{Line: 7, Due: 1500, Sent: 1500, End: 1501, Err: &client.Error{Kind: client.Refused, Err: errors.New("x")}})
	s, err := r.Summary()
	if err != nil {
		t.Fatal(err)
	}
	if s.Requests != 7 || s.Answered != 4 || s.Failed != 3 || len(s.FailedBy) != 2 || s.FailedBy[0] != (Count{"refused", 2}) || s.FailedBy[1] != (Count{"cut off", 1}) {
		t.Errorf("counts: %+v", s)
	}
	if g := s.Goodput; g.KeptTTFT != 2 || g.KeptTBT != 3 || g.Kept != 1 || g.Share != 1./7 || g.RequestsPerS != .5 || g.TTFTms != 100 || g.TBTms != 20 {
		t.Errorf("goodput: %+v", g)
	}
	if c := s.Cached; c != (Cached{Tokens: 80, Must: 48, May: 96, InOrder: 48, Share: 80. / 192, AsExpected: 1, TooFew: 1, TooMany: 1, Untold: 1}) {
		t.Errorf("cached: %+v", c)
	}
	if s.Seconds != 2 || s.PromptTokens != 256 || s.OutputTokens != 6 || s.RequestsPerS != 2 || s.PromptTokensPerS != 128 || s.OutputTokensPerS != 3 {
		t.Errorf("rates: %+v", s)
	}
	if s.TTFT.Count != 4 || s.TTFT.Max < 1990 || s.TBT.Count != 2 || s.TailTBT.Count != 2 || s.Latency.Count != 4 || s.SendLag.Max < 99 {
		t.Errorf("spreads: %+v", s)
	}
	for i, o := range r.Outcomes() {
		if o.Line != i+1 {
			t.Errorf("outcome %d is of line %d", i, o.Line)
		}
	}
}

func TestSummaryOfNothing(t *testing.T) {
	s, err := NewRecorder(SLO{}).Summary()
	if err != nil || s.Requests != 0 || s.RequestsPerS != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
