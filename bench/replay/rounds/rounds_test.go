package rounds

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/report"
)

// replaysOf has n requests a round: the baseline takes 100 ms and its line, ours in
// round r (1 + r) times a factor of that, a quarter of it where something is shared.
func replaysOf(rounds, n int, factor float64) []Replay {
	var all []Replay
	for round := range rounds {
		base, ours := Replay{System: "none", Round: round}, Replay{System: "ours", Round: round}
		for line := 1; line <= n; line++ {
			must := 0
			t := 100 + float64(line)
			own := t * factor * float64(1+round)
			if line%4 == 0 {
				must, own = 32, own/4
			}
			base.Requests = append(base.Requests, report.Request{Line: line, TTFTms: t, CachedTokens: 0, MustTokens: must})
			ours.Requests = append(ours.Requests, report.Request{Line: line, TTFTms: own, CachedTokens: must, MustTokens: must})
		}
		all = append(all, ours, base)
	}
	return all
}

func TestSum(t *testing.T) {
	r, err := Sum("t.jsonl", "none", 1, replaysOf(2, 8, .5))
	if err != nil {
		t.Fatal(err)
	}
	if r.Rounds != 2 || len(r.Systems) != 2 || r.Systems[0].Name != "none" {
		t.Fatalf("%+v", r)
	}
	none, ours := &r.Systems[0], &r.Systems[1]
	if none.MeanRatio != nil || none.Pairs != 0 || none.AsExpected != 12 || none.MustTokens != 128 || none.CachedTokens != 0 {
		t.Errorf("the baseline: %+v", none)
	}
	if ours.Answered != 16 || ours.AsExpected != 16 || ours.CachedTokens != 128 || ours.Pairs != 16 || ours.SharedPairs != 4 || len(ours.ByRound) != 2 {
		t.Errorf("ours: %+v", ours)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	// Round 0 has half the time, round 1 all of it; shared requests a quarter of that.
	if !near(ours.SharedRatio.Value, .1875) || !near(ours.MedianRatio.Value, .5) || ours.ByRound[1] != 2*ours.ByRound[0] {
		t.Errorf("ratios: shared %+v, median %+v, by round %v", ours.SharedRatio, ours.MedianRatio, ours.ByRound)
	}
	if ours.SharedRatio.Low > .13 || ours.SharedRatio.High < .24 {
		t.Errorf("the interval does not show that rounds differ: %+v", ours.SharedRatio)
	}
}

// TestSumPartly: failed requests, those the baseline has not, and silence about what
// is cached.
func TestSumPartly(t *testing.T) {
	replays := replaysOf(1, 4, 1)
	replays[0].Requests[0] = report.Request{Line: 1, TTFTms: math.NaN(), CachedTokens: client.Unknown, Failed: true}
	replays[0].Requests[1].CachedTokens = client.Unknown
	replays[1].Requests = replays[1].Requests[:3]
	r, err := Sum("t", "none", 1, replays)
	if err != nil {
		t.Fatal(err)
	}
	ours := &r.Systems[1]
	if ours.Requests != 4 || ours.Answered != 3 || ours.AsExpected != 2 || ours.Pairs != 2 || ours.SharedRatio != nil {
		t.Errorf("%+v", ours)
	}
	if alone, err := Sum("t", "gone", 1, replays); err != nil || alone.Systems[0].MeanRatio != nil {
		t.Errorf("without the baseline: %+v, %v", alone, err)
	}
	for name, bad := range map[string][]Replay{"none": nil, "twice": append(replaysOf(1, 1, 1), replaysOf(1, 1, 1)...)} {
		if _, err := Sum("t", "none", 1, bad); !errors.Is(err, ErrRounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dead := []Replay{{System: "x", Requests: []report.Request{{Line: 1, Failed: true}}}}
	if r, err := Sum("t", "none", 1, dead); err != nil || r.WriteJSON(&bytes.Buffer{}) != nil {
		t.Errorf("nothing was answered: %v", err)
	}
}

func TestWrite(t *testing.T) {
	r, err := Sum("t.jsonl", "none", 1, replaysOf(2, 8, .5))
	if err != nil {
		t.Fatal(err)
	}
	var text, encoded, html bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteJSON(&encoded), r.WriteHTML(&html)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"t.jsonl, 2 rounds", "16 of 16", "0.188 ["} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	for _, want := range []string{"<td>16 of 16</td>", "<td>0.188 [", "<svg"} {
		if !strings.Contains(html.String(), want) {
			t.Errorf("no %q in\n%s", want, &html)
		}
	}
	var back Result
	if err := json.Unmarshal(encoded.Bytes(), &back); err != nil || back.Systems[1].SharedRatio.Value != r.Systems[1].SharedRatio.Value {
		t.Errorf("%+v, %v", back, err)
	}
}
