package coupled

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

// two requests: the second comes while the first decodes.
func two() *workload.Workload {
	blocks := func(first uint64, n int) (out []uint64) {
		for i := range n {
			out = append(out, first+uint64(i))
		}
		return out
	}
	return &workload.Workload{Requests: []workload.Request{
		{Arrival: 0, InputTokens: 4096, OutputTokens: 11, Blocks: blocks(1, 8)},
		{Arrival: time.Second * 6 / 10, InputTokens: 4096, OutputTokens: 3, Blocks: blocks(1, 8)},
	}}
}

func simulate(t *testing.T, c Config, w *workload.Workload) *cluster.Result {
	t.Helper()
	r, err := Run(t.Context(), c, w)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestDisciplines: when the second request's first token comes, and what that does
// to the first one's gaps.
func TestDisciplines(t *testing.T) {
	costs := model.Default()
	prompt := costs.GPU(4096, 0) // 0.48 s
	step := func(k int) float64 { return costs.Iteration(1, int64(4096+k)) }
	begin := prompt // of the iteration that runs when the second comes, and its number
	k := 1
	for begin+step(k) < 0.6 {
		begin += step(k)
		k++
	}
	next := begin + step(k)
	all := prompt
	for i := 1; i <= 10; i++ {
		all += step(i)
	}
	near := func(what string, got time.Duration, want float64) {
		t.Helper()
		if d := got.Seconds() - want; d < -1e-6 || d > 1e-6 {
			t.Errorf("%s: %.6f s, want %.6f", what, got.Seconds(), want)
		}
	}
	c := Default(1)
	r := simulate(t, c, two())
	near("prefill-first: first token", r.Outcomes[1].TTFT, next+prompt-.6)
	near("prefill-first: longest gap of the other", r.Outcomes[0].TBT, prompt+costs.Iteration(2, int64(4096+k+1+4096+1)))

	c.Discipline = DecodeFirst
	r = simulate(t, c, two())
	near("decode-first: first token", r.Outcomes[1].TTFT, all+prompt-.6)
	near("decode-first: longest gap of the other", r.Outcomes[0].TBT, step(10))

	c.Discipline, c.ChunkTokens = Chunked, 2048
	r = simulate(t, c, two())
	chunked := next + costs.GPU(2048, 0) + step(k+1) + costs.GPU(4096, 2048) + step(k+2)
	near("chunked: first token", r.Outcomes[1].TTFT, chunked-.6)
	near("chunked: longest gap of the other", r.Outcomes[0].TBT, costs.GPU(4096, 2048)+step(k+2))

	c = Default(1)
	c.CacheBlocks = 100
	r = simulate(t, c, two())
	near("with a cache: first token", r.Outcomes[1].TTFT, next+costs.GPU(4096, 4095)-.6)
	if r.Outcomes[1].HitBlocks != 8 {
		t.Errorf("%d blocks hit, want 8", r.Outcomes[1].HitBlocks)
	}
}

// TestEverythingEnds: each request is served once, by the least loaded engine, and
// no faster than alone.
func TestEverythingEnds(t *testing.T) {
	s := workload.LEval()
	s.Requests = 300
	w, err := workload.Generate(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range Disciplines() {
		for _, blocks := range []int{0, 500} {
			c := Default(3)
			c.Discipline, c.CacheBlocks = d, blocks
			r := simulate(t, c, w)
			hits := 0
			for i := range r.Outcomes {
				o := &r.Outcomes[i]
				hits += o.HitBlocks
				if o.Arrival != w.Requests[i].Arrival || o.TTFT+time.Microsecond < o.GPU || // chunks are rounded
					o.Finished < o.Arrival+o.TTFT || o.TBT < o.MeanTBT || o.MeanTBT <= 0 {
					t.Fatalf("%s: request %d: %+v", d, i, o)
				}
			}
			if hits > 0 != (blocks > 0) {
				t.Errorf("%s: %d hits with %d blocks of cache", d, hits, blocks)
			}
		}
	}
}

// TestOneAlone: alone on an engine all disciplines but for the chunks' overhead are
// the same.
func TestOneAlone(t *testing.T) {
	w := two()
	w.Requests = w.Requests[:1]
	first := simulate(t, Default(1), w).Outcomes[0]
	for _, d := range Disciplines() {
		c := Default(1)
		c.Discipline = d
		got := simulate(t, c, w).Outcomes[0]
		if delta := got.TTFT - first.TTFT; delta < -10 || delta > 10 || got.TBT != first.TBT {
			t.Errorf("%s: %+v, want %+v", d, got, first)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, Default(0), {Nodes: 1, Discipline: "none"}, {Nodes: 1, Discipline: Chunked}, {Nodes: 1, Discipline: DecodeFirst, CacheBlocks: -1}} {
		if _, err := Run(t.Context(), c, two()); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := workload.ArXiv()
	s.Requests = 1000
	w, err := workload.Generate(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(ctx, Default(4), w); !errors.Is(err, context.Canceled) {
		t.Errorf("a run that was given up: %v", err)
	}
}
