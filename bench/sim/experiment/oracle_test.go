package experiment

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/coupled"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// tracesVar names the folder with the real traces. Once it is set, what lacks there
// is a failure.
const tracesVar = "MOONCAKE_SIDECAR_TRACES"

// realTrace reads one of the papers' traces, or skips.
func realTrace(t *testing.T, name string) *workload.Workload {
	t.Helper()
	dir := os.Getenv(tracesVar)
	if dir == "" {
		t.Skipf("%s is not set: it names a folder with Mooncake's traces", tracesVar)
	}
	f, err := os.Open(filepath.Join(dir, name+"_trace.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := workload.Read(f, f.Name())
	if err != nil {
		t.Fatal(err)
	}
	w.Name = name
	return w
}

func setting(seeds int) *Setting { return &Setting{Seeds: seeds, Base: cluster.Default()} }

// meanOf is a value's mean over seeds.
func meanOf(all []cluster.Summary, value func(*cluster.Summary) float64) float64 {
	return spread(all, 0, value).Mean
}

func ttft(s *cluster.Summary) float64  { return s.MeanTTFT }
func token(s *cluster.Summary) float64 { return s.TokenHitRatio }

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.4f, want %.4f within %.4f", what, got, want, tolerance)
	}
}

// TestFig8: the cost model over whole traces, which it was not fitted to.
func TestFig8(t *testing.T) {
	c := cluster.Default().Costs
	for _, name := range []string{conversation, synthetic} {
		none, all := meanPrefill(&c, realTrace(t, name))
		want := map[string][2]float64{conversation: {1.663, 1.056}, synthetic: {2.168, .736}}[name]
		near(t, name+", no cache", none, want[0], .001)
		near(t, name+", all hits", all, want[1], .001)
		near(t, name+", no cache, the paper's", none/fig8NoCache()[name], 1, .08)
		near(t, name+", all hits, the paper's", all/fig8Mooncake()[name], 1, .08)
	}
}

// TestStrategies: the papers' order with its ratios, and the prototype's values.
func TestStrategies(t *testing.T) {
	w := realTrace(t, conversation)
	for _, c := range []struct {
		speed, service float64
		// TTFT of random, load balancing, cache-aware and KVCache-centric.
		want       [4]float64
		kvc        [2]float64 // range of KVCache-centric to cache-aware
		randomTo   float64    // tolerance for random
		kvcToLocal bool
	}{
		{1, 1, [4]float64{7.06, 2.91, 1.45, 1.30}, [2]float64{.75, .95}, .15, true},
		{1.4, 1, [4]float64{23.3, 5.27, 1.82, 1.47}, [2]float64{.75, .95}, .15, true},
		{1, 1.3, [4]float64{20.16, 5.39, 2.14, 1.83}, [2]float64{.75, .95}, .15, true},
		{2, 1, [4]float64{272, 264, 33.6, 6.02}, [2]float64{0, .3}, .15, false},
	} {
		s := setting(5)
		var got [4]float64
		var runs [4][]cluster.Summary
		for i, strategy := range scheduler.Strategies() {
			config := s.Base
			config.Decode = 0
			config.Costs.ServiceFactor = c.service
			config.Scheduler.Strategy = strategy
			if i >= 2 {
				s.Seeds = 1 // nothing is drawn
			}
			all, err := s.run(t.Context(), "", w, config, c.speed, 0)
			if err != nil {
				t.Fatal(err)
			}
			runs[i], got[i] = all, meanOf(all, ttft)
			tolerance := .1
			if i == 0 {
				tolerance = c.randomTo
			}
			near(t, string(strategy)+"'s TTFT over the prototype's", got[i]/c.want[i], 1, tolerance)
		}
		t.Logf("%gx, service %g: TTFT %.2f, hits %.3f %.3f %.3f %.3f", c.speed, c.service, got, meanOf(runs[0], token), meanOf(runs[1], token), meanOf(runs[2], token), meanOf(runs[3], token))
		if got[3] >= got[2] || got[2] >= got[1] || got[1] >= got[0] {
			t.Errorf("%gx: TTFT %.2f is not falling", c.speed, got)
		}
		if ratio := got[3] / got[2]; ratio < c.kvc[0] || ratio > c.kvc[1] {
			t.Errorf("%gx: KVCache-centric to cache-aware is %.3f, want %v", c.speed, ratio, c.kvc)
		}
		if c.kvcToLocal && got[1]/got[0] >= .5 {
			t.Errorf("%gx: load balancing to random is %.3f, want less than a half", c.speed, got[1]/got[0])
		}
		// Equal to the three digits that the prototype's have. At twice the load next to
		// nobody is in time under the first two.
		slack := .0005
		if c.speed == 2 {
			slack = .005
		}
		within := func(limit func(*cluster.Summary) float64) {
			for i := range 3 {
				if a, b := meanOf(runs[i], limit), meanOf(runs[i+1], limit); a > b+slack {
					t.Errorf("%gx: %.4f of the requests are in time with strategy %d, %.4f with %d", c.speed, b, i+1, a, i)
				}
			}
		}
		within(func(s *cluster.Summary) float64 { return s.Within30 })
		within(func(s *cluster.Summary) float64 { return s.Within5 })
		if c.speed != 1 || c.service != 1 {
			continue
		}
		near(t, "hits, random", meanOf(runs[0], token), .110, .01)
		near(t, "hits, load balancing", meanOf(runs[1], token), .108, .01)
		near(t, "hits, cache-aware", meanOf(runs[2], token), .308, .01)
		near(t, "hits, KVCache-centric", meanOf(runs[3], token), .354, .01)
		for i, between := range [][2]float64{{.10, .13}, {.10, .13}, {.29, .32}, {.34, 1}} {
			if hit := meanOf(runs[i], token); hit < between[0] || hit > between[1] {
				t.Errorf("hits of strategy %d: %.3f, want %v", i, hit, between)
			}
		}
		if n := runs[3][0].Transfers; n == 0 {
			t.Error("nothing was fetched")
		}
	}
}

// TestThreshold matters little, and fewer prefixes are fetched the higher it is.
func TestThreshold(t *testing.T) {
	w := realTrace(t, conversation)
	s := setting(1)
	last, lastTTFT := math.MaxInt, 0.0
	for i, threshold := range []float64{1.0001, 2, 4, 8, 16, 1e9} {
		config := s.Base
		config.Decode = 0
		config.Costs.ServiceFactor = 1.3
		config.Scheduler.Threshold = threshold
		one, err := s.one(t.Context(), "", w, config)
		if err != nil {
			t.Fatal(err)
		}
		if i < 5 {
			near(t, "TTFT over the prototype's", one.MeanTTFT/[]float64{1.811, 1.819, 1.830, 1.850, 1.914}[i], 1, .1)
		}
		if one.Transfers > last || one.MeanTTFT < lastTTFT*.995 {
			t.Errorf("threshold %g: %d transfers, TTFT %.3f; %d and %.3f with a lower one", threshold, one.Transfers, one.MeanTTFT, last, lastTTFT)
		}
		last, lastTTFT = one.Transfers, one.MeanTTFT
	}
}

// TestFig9: hits of one cache by its size lie as far below the paper's as blocks are
// coarser than tokens, which was found with another program: 0 to .012, and for
// conversations .019 to .037.
func TestFig9(t *testing.T) {
	for name, below := range map[string][2]float64{conversation: {.019, .037}, synthetic: {0, .012}} {
		w := realTrace(t, name)
		tokens, paper := fig9(name)
		for i := range tokens {
			got, err := hitsOf(t.Context(), w, "lru", int(tokens[i])/workload.BlockTokens)
			if err != nil {
				t.Fatal(err)
			}
			if less := math.Round(1e3*(paper[i]-got)) / 1e3; less < below[0] || less > below[1] {
				t.Errorf("%s, %.0f tokens: %.4f, the paper's %.4f", name, tokens[i], got, paper[i])
			}
		}
	}
}

// TestFig10: hits and prefill times with global caches on ten nodes.
func TestFig10(t *testing.T) {
	for name, want := range map[string][2]float64{conversation: {.360, 1.078}, synthetic: {.640, .761}} {
		s := setting(1)
		config := s.Base
		config.Prefill, config.Decode = 10, 0
		one, err := s.one(t.Context(), "", realTrace(t, name).WithOutputs(1), config)
		if err != nil {
			t.Fatal(err)
		}
		near(t, name+", hits", one.TokenHitRatio, want[0], .01)
		near(t, name+", GPU", one.MeanGPU/want[1], 1, .02)
	}
}

// TestFig15: TTFT falls steeply and then is flat with more prefill nodes, TBT rises,
// and most requests are good between.
func TestFig15(t *testing.T) {
	w := realTrace(t, synthetic)
	var first, tbt, good [7]float64
	for i := range first {
		config := cluster.Default()
		config.Prefill, config.Decode = 5+i, 11-i
		result, err := cluster.Run(t.Context(), config, w)
		if err != nil {
			t.Fatal(err)
		}
		one := cluster.Summarize(result, cluster.Objectives{TTFT: 10 * time.Second, TBT: 100 * time.Millisecond})
		first[i], tbt[i], good[i] = one.MeanTTFT, one.MeanTBT, one.Good
	}
	for i, want := range [7]float64{3.45, 1.25, .97, .88, .85, .84, .83} {
		near(t, "TTFT over the prototype's", first[i]/want, 1, .1)
		if i > 0 && tbt[i] <= tbt[i-1] {
			t.Errorf("TBT %.4f does not rise", tbt)
		}
	}
	if first[0] < 3*first[2] || first[2] > 1.25*first[6] {
		t.Errorf("TTFT %.2f has another shape than steep and then flat", first)
	}
	for _, edge := range []int{0, 6} {
		if best := max(good[2], good[3], good[4]); good[edge] >= best || good[edge] > .98 || min(good[2], good[3], good[4]) < .98 {
			t.Errorf("good %.3f has no plateau at 7 to 9 nodes", good)
		}
	}
}

// TestFig13: TTFT by bandwidth falls, with its knee near 100 Gb/s.
func TestFig13(t *testing.T) {
	w := realTrace(t, synthetic)
	gbits, paper, _ := fig13()
	last := math.Inf(1)
	got := map[float64]float64{}
	for i, g := range gbits {
		s := setting(1)
		config := s.Base
		config.Costs.LinkBytesPerSecond = g * 1e9 / 8
		config.SerialHandover = true
		one, err := s.one(t.Context(), "", w, config)
		if err != nil {
			t.Fatal(err)
		}
		if got[g] = one.MeanTTFT; one.MeanTTFT > last {
			t.Errorf("TTFT rises to %.2f at %g Gb/s", one.MeanTTFT, g)
		}
		last = one.MeanTTFT
		if g >= 80 {
			near(t, "TTFT over the paper's", one.MeanTTFT/paper[i], 1, .2)
		}
	}
	if got[40] < 2*got[100] || got[400] < .5*got[100] {
		t.Errorf("the knee is not near 100 Gb/s: %v", got)
	}
}

// TestTable2: what is robust about refusing early.
func TestTable2(t *testing.T) {
	w := realTrace(t, conversation)
	s := setting(5)
	all := map[string][]cluster.Summary{}
	for _, r := range refusals()[:3] {
		runs, err := s.run(t.Context(), "", w, s.overload(8, r), 2, grid)
		if err != nil {
			t.Fatal(err)
		}
		all[string(r.admission)] = runs
	}
	of := func(policy string, value func(*cluster.Summary) float64) float64 { return meanOf(all[policy], value) }
	late := func(x *cluster.Summary) float64 { return float64(x.RefusedLate) }
	wasted := func(x *cluster.Summary) float64 { return x.WastedGPU }
	total := func(x *cluster.Summary) float64 { return float64(x.Refused) }
	corr := func(x *cluster.Summary) float64 { return x.LoadCorrelation }
	busy := func(x *cluster.Summary) float64 { return x.BusyDeviation }
	for policy := range all {
		t.Logf("%s: refused %.0f, late %.0f, wasted %.0f s, busy sd %.3f, corr %.3f", policy, of(policy, total), of(policy, late), of(policy, wasted), of(policy, busy), of(policy, corr))
		near(t, policy+": total over the baseline's", of(policy, total)/of("baseline", total), 1, .05)
	}
	near(t, "prediction's total over early's", of("prediction", total)/of("early", total), 1, .05)
	if a, b := of("early", late), of("baseline", late); a >= .65*b {
		t.Errorf("late refusals: %.0f early, %.0f in the baseline", a, b)
	}
	if a, b := of("early", wasted), of("baseline", wasted); a >= .65*b {
		t.Errorf("wasted: %.0f s early, %.0f s in the baseline", a, b)
	}
	if a, b := of("early", corr), of("baseline", corr); a > b-.1 {
		t.Errorf("correlation: %.3f early, %.3f in the baseline", a, b)
	}
	if e, p, b := of("early", busy), of("prediction", busy), of("baseline", busy); e <= p || p < b {
		t.Errorf("deviation of busy nodes: early %.3f, prediction %.3f, baseline %.3f", e, p, b)
	}
	if a, b := of("early", total), of("baseline", total); a > b {
		t.Errorf("%.0f refused early, %.0f by the baseline", a, b)
	}
	near(t, "the baseline's share", of("baseline", total)/12031, .192, .015)
}

// TestFig1: coupled engines keep far fewer gaps below 100 ms; those of ours are
// distributed as the paper's. (The prototype's lay 14 % below its P90 on the
// synthetic trace: it left the wait for the first iteration out.)
func TestFig1(t *testing.T) {
	for name, paper := range map[string][3]float64{conversation: {57.2, 74.3, 92.6}, synthetic: {28.7, 39.9, 54.5}} {
		w := realTrace(t, name)
		s := setting(1)
		ours, err := s.one(t.Context(), "", w, s.Base)
		if err != nil {
			t.Fatal(err)
		}
		result, err := s.engines(16, coupled.PrefillFirst, false).run(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		theirs := cluster.Summarize(result, cluster.Paper())
		if ours.Within100 < .9 || theirs.Within100 > .6*ours.Within100 {
			t.Errorf("%s: %.3f within 100 ms, coupled %.3f", name, ours.Within100, theirs.Within100)
		}
		for i, got := range []float64{ours.P10TBT, ours.P50TBT, ours.P90TBT} {
			near(t, name+": TBT over the paper's", 1e3*got/paper[i], 1, .2)
		}
	}
}
