package generate

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// figures are what is compared of two traces.
type figures struct {
	requests               int
	input, output, seconds float64
	// hit is the share of tokens that an unbounded cache hits, roots the requests that
	// share nothing.
	hit, roots float64
}

func measure(requests []trace.Numbered) figures {
	f := figures{requests: len(requests)}
	seen := map[int64]bool{}
	for i := range requests {
		r := &requests[i]
		f.input += float64(r.InputTokens)
		f.output += float64(r.OutputTokens)
		shared := 0
		for shared < len(r.HashIDs) && seen[r.HashIDs[shared]] {
			shared++
		}
		if shared == 0 {
			f.roots++
		}
		f.hit += min(float64(shared)*trace.BlockTokens, float64(r.InputTokens))
		for _, id := range r.HashIDs {
			seen[id] = true
		}
		f.seconds = float64(r.TimestampMS-requests[0].TimestampMS) / 1e3
	}
	n := float64(len(requests))
	f.hit /= f.input
	f.input, f.output, f.roots = f.input/n, f.output/n, f.roots/n
	return f
}

// draw writes a trace and reads it with the strict reader.
func draw(t *testing.T, p *Profile, n int, seed uint64) ([]trace.Numbered, []byte) {
	t.Helper()
	var out bytes.Buffer
	w := trace.NewWriter(&out)
	if err := Draw(p, n, seed, w.Write); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	requests, faults, err := trace.ReadAll(bytes.NewReader(out.Bytes()), p.Name, 0)
	if err != nil || len(faults) != 0 || len(requests) != n {
		t.Fatalf("%d requests, faults %v, %v", len(requests), faults, err)
	}
	// One parent and one depth for each id.
	parent := map[int64]int64{}
	for i := range requests {
		before := int64(-1)
		for _, id := range requests[i].HashIDs {
			if known, ok := parent[id]; ok && known != before {
				t.Fatalf("id %d follows %d and %d", id, known, before)
			}
			parent[id], before = before, id
		}
	}
	return requests, out.Bytes()
}

func near(got, want, relative float64) bool { return math.Abs(got-want) <= relative*math.Abs(want) }

func TestWorkloads(t *testing.T) {
	for _, test := range []struct {
		name               string
		input, output, hit float64
	}{
		{"arxiv", 8088, 229, 0}, {"l-eval", 19019, 72, .81}, {"simulated-16k", 16384, 512, .5}, {"simulated-32k", 32768, 512, .5},
		{"simulated-64k", 65536, 512, .5}, {"simulated-128k", 131072, 512, .5},
	} {
		p, ok := Workload(test.name)
		if !ok {
			t.Fatalf("no workload %q", test.name)
		}
		p.Arrivals.RatePerS = 4
		requests, text := draw(t, p, 2000, 1)
		f := measure(requests)
		if !near(f.input, test.input, .05) || !near(f.output, test.output, .07) || math.Abs(f.hit-test.hit) > .02 || !near(f.seconds, 500, .1) {
			t.Errorf("%s: %+v", test.name, f)
		}
		if _, again := draw(t, p, 2000, 1); !bytes.Equal(again, text) {
			t.Errorf("%s: the same seed gives another trace", test.name)
		}
		if _, other := draw(t, p, 2000, 2); bytes.Equal(other, text) {
			t.Errorf("%s: another seed gives the same trace", test.name)
		}
	}
	if _, ok := Workload("none"); ok || len(Workloads()) != 6 {
		t.Error("workloads", Workloads())
	}
}

// What is drawn from a fitted profile has the statistics of what was fitted.
func TestFit(t *testing.T) {
	check := func(name string, requests []trace.Numbered) {
		p, err := Fit(name, requests)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var kept bytes.Buffer
		if err := p.Write(&kept); err != nil {
			t.Fatal(err)
		}
		if p, err = Read(&kept); err != nil {
			t.Fatalf("%s, read again: %v", name, err)
		}
		drawn, _ := draw(t, p, len(requests), 7)
		want, got := measure(requests), measure(drawn)
		t.Logf("%s:\n%+v drawn\n%+v fitted", name, got, want)
		if !near(got.input, want.input, .05) || !near(got.output, want.output, .05) || !near(got.seconds, want.seconds, .05) || math.Abs(got.hit-want.hit) > .03 || math.Abs(got.roots-want.roots) > .02 {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		again, err := Fit(name, drawn)
		if err != nil {
			t.Fatal(err)
		}
		a, b := again.Arrivals, p.Arrivals
		if a.GridMS != b.GridMS || !near(a.RatePerS, b.RatePerS, .05) || !near(a.Dispersion, b.Dispersion, .35) || math.Abs(again.OutputCorrelation-p.OutputCorrelation) > .05 {
			t.Errorf("%s: arrivals %+v and %+v, correlations %g and %g", name, a, b, again.OutputCorrelation, p.OutputCorrelation)
		}
	}
	mixed := &Profile{
		Arrivals: Arrivals{RatePerS: 5, Dispersion: 3, GridMS: 250, Parts: []float64{.5, 1.5, 1}},
		Output:   logNormal(100, .5), OutputCorrelation: -.4,
		Classes: []Class{
			{Name: "new", Probability: .3, Input: logNormal(3000, .5)},
			{Name: "system", Probability: .3, Input: logNormal(5000, .8), FirstOnly: true, Age: Quantiles{1, 5, 50}},
			{Name: "deep", Probability: .4, Input: logNormal(20000, .4), Depth: Quantiles{.1, .9}, DepthCorrelation: .5, Age: Quantiles{1, 20}},
		},
	}
	requests, _ := draw(t, mixed, 5000, 3)
	check("mixed", requests)
	traces := os.Getenv("MOONCAKE_SIDECAR_TRACES")
	for _, name := range []string{"conversation_trace.jsonl", "synthetic_trace.jsonl"} {
		f, err := os.Open(filepath.Join(traces, name))
		if traces == "" || err != nil {
			t.Logf("without %s", name)
			continue
		}
		requests, faults, err := trace.ReadAll(f, name, 0)
		f.Close()
		if err != nil || len(faults) > 0 {
			t.Fatal(faults, err)
		}
		check(name, requests)
	}
}

func TestFitRefuses(t *testing.T) {
	one := trace.Numbered{Request: trace.Request{TimestampMS: 5, InputTokens: 1, HashIDs: []int64{0}}}
	for _, requests := range [][]trace.Numbered{nil, {one}, {one, one}} {
		if _, err := Fit("x", requests); !errors.Is(err, ErrProfile) {
			t.Errorf("%d requests: %v", len(requests), err)
		}
	}
}

func TestProfileRefuses(t *testing.T) {
	for i, spoil := range []func(p *Profile){
		func(p *Profile) { p.Arrivals.RatePerS = 0 }, func(p *Profile) { p.Arrivals.RatePerS = math.NaN() }, func(p *Profile) { p.Arrivals.Dispersion = -1 },
		func(p *Profile) { p.Arrivals.GridMS = 0 }, func(p *Profile) { p.Arrivals.Parts = nil }, func(p *Profile) { p.Arrivals.Parts = []float64{0} },
		func(p *Profile) { p.Output = nil }, func(p *Profile) { p.OutputCorrelation = 2 }, func(p *Profile) { p.Classes = nil },
		func(p *Profile) { p.Classes[0].Probability = .5 }, func(p *Profile) { p.Classes[0].Input = Quantiles{0} },
		func(p *Profile) { p.Classes[0].Input = Quantiles{5, 4} }, func(p *Profile) { p.Classes[1].Age = nil }, func(p *Profile) { p.Classes[1].Depth = Quantiles{2} },
	} {
		p, _ := Workload("l-eval")
		spoil(p)
		if err := Draw(p, 1, 1, func(*trace.Request) error { return nil }); !errors.Is(err, ErrProfile) {
			t.Errorf("spoilt profile %d: %v", i, err)
		}
	}
	for _, text := range []string{"", "[]", `{"more": 1}`, `{"name": "x"}`} {
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, ErrProfile) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"l-eval", "simulated-16k"} {
		p, _ := Workload(name)
		var out bytes.Buffer
		if err := p.Write(&out); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		for i := range p.Classes { // enough to draw from, and not for minutes
			for _, tokens := range p.Classes[i].Input {
				if tokens > 1e5 {
					return
				}
			}
		}
		last := int64(0)
		if err := Draw(p, 3, 1, func(r *trace.Request) error {
			if r.InputTokens < 1 || r.OutputTokens < 0 || int64(len(r.HashIDs)) != (r.InputTokens+511)/512 || r.TimestampMS < last {
				t.Fatalf("%+v", r)
			}
			last = r.TimestampMS
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestGamma(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, shape := range []float64{.05, .5, 1, 4, 20} {
		const n = 200_000
		sum, squares := 0.0, 0.0
		for range n {
			v := gamma(rng, shape)
			sum, squares = sum+v, squares+v*v
		}
		mean := sum / n
		if variance := squares/n - mean*mean; !near(mean, shape, .03) || !near(variance, shape, .06) {
			t.Errorf("shape %g: mean %g, variance %g", shape, mean, variance)
		}
	}
}

func TestQuantiles(t *testing.T) {
	q := Quantiles{1, 3, 3, 3, 11}
	for _, test := range []struct{ p, v float64 }{{0, 1}, {.125, 2}, {.25, 3}, {.75, 3}, {.875, 7}, {1, 11}} {
		if got := q.At(test.p); got != test.v {
			t.Errorf("At(%g) = %g, want %g", test.p, got, test.v)
		}
	}
	for _, test := range []struct{ v, p float64 }{{0, 0}, {1, 0}, {2, .125}, {3, .5}, {7, .875}, {11, 1}, {12, 1}} {
		if got := q.Rank(test.v); got != test.p {
			t.Errorf("Rank(%g) = %g, want %g", test.v, got, test.p)
		}
	}
	if one := (Quantiles{5}); one.At(.3) != 5 || one.Mean() != 5 || one.Rank(4) != 0 || one.Rank(6) != 1 {
		t.Error("a constant")
	}
	if q.Mean() != 3.75 {
		t.Errorf("mean %g", q.Mean())
	}
	if got := fitQuantiles([]float64{5, 1, 3}); len(got) != 4 || got[0] != 1 || got[3] != 5 {
		t.Errorf("fitted %v", got)
	}
}
