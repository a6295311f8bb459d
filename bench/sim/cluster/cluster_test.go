package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/cache"
	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// small is a workload that keeps a few nodes busy.
func small(t testing.TB) *workload.Workload {
	t.Helper()
	s := workload.LEval()
	s.Requests, s.PerSecond = 400, 1.5
	w, err := workload.Generate(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func simulate(t testing.TB, c Config, w *workload.Workload) *Result {
	t.Helper()
	r, err := Run(t.Context(), c, w)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEverythingEnds under every strategy, admission, order and way of handing
// over: each request is served or refused once, nothing is faster than the cost
// model, and the same seed gives the same bytes.
func TestEverythingEnds(t *testing.T) {
	w := small(t)
	for _, strategy := range scheduler.Strategies() {
		for i, admission := range scheduler.Admissions() {
			c := Default()
			c.Prefill, c.Decode, c.CacheBlocks = 3, 2, 400
			c.Scheduler.Strategy, c.Scheduler.Admission = strategy, admission
			c.TTFT, c.TBT = 8*time.Second, 60*time.Millisecond
			c.SerialHandover = i%2 == 0
			c.Sample = time.Second
			if i%3 == 1 {
				c.Scheduler.Patience, c.DecodeBlocks, c.Scheduler.DecodeAffinity = 3, 300, .5
				c.Replication = scheduler.ReplicationOptions{Uses: 2, HalfLife: time.Minute, MinBlocks: 1}
			}
			c.EstimateError = float64(i%2) / 5
			r := simulate(t, c, w)
			checkOutcomes(t, &c, w, r)
			if again := encode(t, simulate(t, c, w)); again != encode(t, r) {
				t.Errorf("%s, %s: the same seed gave another result", strategy, admission)
			}
		}
	}
}

func encode(t *testing.T, r *Result) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func checkOutcomes(t *testing.T, c *Config, w *workload.Workload, r *Result) {
	t.Helper()
	served := 0
	for i := range r.Outcomes {
		o, q := &r.Outcomes[i], &w.Requests[i]
		if o.Arrival != q.Arrival || o.Finished < o.Arrival || o.Blocks != len(q.Blocks) || o.HitBlocks > o.Blocks {
			t.Fatalf("request %d: %+v", i, o)
		}
		if o.Fate == RefusedFirst || o.Fate == RefusedDecode {
			if o.Finished != o.Arrival || o.GPU != 0 {
				t.Fatalf("request %d was refused at arrival and has %+v", i, o)
			}
			continue
		}
		cached := min(o.HitBlocks*workload.BlockTokens, q.InputTokens-1)
		if gpu := model.Duration(c.Costs.GPU(q.InputTokens, cached)); o.GPU != gpu {
			t.Fatalf("request %d took %v of GPU time, want %v", i, o.GPU, gpu)
		}
		if want := o.Queue + model.Duration(c.Costs.Latency(q.InputTokens, cached)) + o.Handover; o.TTFT != want || o.Queue < 0 || o.Handover < 0 || o.Queue < o.Transfer {
			t.Fatalf("request %d: TTFT %v is not its parts, %v: %+v", i, o.TTFT, want, o)
		}
		if o.Fate != Served {
			continue
		}
		served++
		if least := model.Duration(c.Costs.Iteration(1, int64(q.InputTokens))); q.OutputTokens > 1 && (o.MeanTBT < least || o.TBT < o.MeanTBT) {
			t.Fatalf("request %d: %v and %v between tokens, an iteration is at least %v", i, o.TBT, o.MeanTBT, least)
		}
	}
	s := Summarize(r, Paper())
	if served+s.Refused != s.Requests || served == 0 {
		t.Errorf("%d served and %d refused of %d", served, s.Refused, s.Requests)
	}
}

// TestOneNode: the queue of a node is the recurrence of first come, first served,
// and its hits are those of the replay that has no time.
func TestOneNode(t *testing.T) {
	const file = "../../cache/testdata/micro.jsonl"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := cache.Read(strings.NewReader(string(text)), file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := workload.Read(strings.NewReader(string(text)), file)
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{evict.NameLRU, evict.NameFIFO, evict.NameSIEVE} {
		for _, blocks := range []int{12, 30, 1000} {
			p, err := evict.New(policy, blocks)
			if err != nil {
				t.Fatal(err)
			}
			want, err := cache.Replay(t.Context(), tr, p, blocks, cache.Reverse, nil)
			if err != nil {
				t.Fatal(err)
			}
			c := Default()
			c.Prefill, c.Decode, c.CacheBlocks, c.Policy = 1, 0, blocks, policy
			r := simulate(t, c, w)
			hits, free := 0, time.Duration(0)
			for i := range r.Outcomes {
				o := &r.Outcomes[i]
				hits += o.HitBlocks
				start := max(free, o.Arrival)
				if o.Queue != start-o.Arrival {
					t.Fatalf("%s, %d blocks: request %d waits %v, want %v", policy, blocks, i, o.Queue, start-o.Arrival)
				}
				free = start + o.GPU
			}
			if hits != want.HitBlocks {
				t.Errorf("%s, %d blocks: %d hits, the replay has %d", policy, blocks, hits, want.HitBlocks)
			}
		}
	}
}

// TestPatience: a short prompt overtakes long ones that wait, but not the one that
// runs, and not when it comes late.
func TestPatience(t *testing.T) {
	w := &workload.Workload{}
	add := func(at time.Duration, tokens int, block uint64) {
		blocks := make([]uint64, (tokens+511)/512)
		for i := range blocks {
			blocks[i] = block<<20 | uint64(i) + 1
		}
		w.Requests = append(w.Requests, workload.Request{Arrival: at, InputTokens: tokens, OutputTokens: 1, Blocks: blocks})
	}
	add(0, 32<<10, 1)           // 4.5 s, runs
	add(1, 32<<10, 2)           // waits
	add(2, 512, 3)              // short
	add(9*time.Second/2, 64, 4) // shorter, but the second one has waited
	c := Default()
	c.Prefill, c.Decode = 1, 0
	order := func() []int {
		r := simulate(t, c, w)
		out := []int{0, 1, 2, 3}
		for i := range out {
			for j := range i {
				if r.Outcomes[out[i]].Finished < r.Outcomes[out[j]].Finished {
					out[i], out[j] = out[j], out[i]
				}
			}
		}
		return out
	}
	for patience, want := range map[float64][4]int{0: {0, 1, 2, 3}, 0.5: {0, 2, 1, 3}, 5: {0, 2, 3, 1}} {
		c.Scheduler.Patience = patience
		if got := order(); [4]int(got) != want {
			t.Errorf("patience %v: order %v, want %v", patience, got, want)
		}
	}
}

// TestRefusalHasNoEffect: a cluster that refuses everybody is as one that nobody
// asked.
func TestRefusalHasNoEffect(t *testing.T) {
	w := small(t)
	c := Default()
	c.Prefill, c.Decode = 2, 1
	c.Scheduler.Admission = scheduler.AdmitBaseline
	c.TTFT = time.Nanosecond
	r := simulate(t, c, w)
	for i := range r.Outcomes {
		if o := &r.Outcomes[i]; o.Fate != RefusedFirst || o.HitBlocks != 0 {
			t.Fatalf("request %d: %+v", i, o)
		}
	}
	if r.Transfers != 0 || r.HandoverBytes != 0 || r.Ended != w.Requests[len(w.Requests)-1].Arrival {
		t.Errorf("%d transfers, %d bytes, end at %v", r.Transfers, r.HandoverBytes, r.Ended)
	}
}

// TestPooled: a pool has at least the hits of the same memory in parts, and moves
// nothing.
func TestPooled(t *testing.T) {
	w, err := small(t).At(.1, 0, nil) // what is still being computed is in no pool
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.Prefill, c.Decode, c.CacheBlocks = 4, 0, 60
	parts := Summarize(simulate(t, c, w), Paper())
	c.Pooled = true
	c.Scheduler.Strategy = scheduler.CacheAware
	pool := Summarize(simulate(t, c, w), Paper())
	if pool.HitRatio <= parts.HitRatio || pool.Transfers != 0 || parts.Transfers == 0 {
		t.Errorf("hits %.3f in a pool with %d transfers, %.3f in parts with %d", pool.HitRatio, pool.Transfers, parts.HitRatio, parts.Transfers)
	}
}

func TestSlowest(t *testing.T) {
	gaps := make([]time.Duration, 25)
	for i := range gaps {
		gaps[i] = time.Duration((i*7)%25 + 1) // 1 to 25 in disorder
	}
	if slowest, mean := Slowest(gaps); slowest != 24 || mean != 13 {
		t.Errorf("slowest %d, mean %d, want those of 23, 24, 25, and 13", slowest, mean)
	}
	if slowest, mean := Slowest(nil); slowest != 0 || mean != 0 {
		t.Error("gaps where there are none")
	}
}

func TestConfig(t *testing.T) {
	bad := Config{Decode: -1, Policy: "none", Scheduler: scheduler.Options{Patience: -1}, DecodeBlocks: -1, EstimateError: -1, TTFT: -1}
	_, err := Run(t.Context(), bad, &workload.Workload{})
	if !errors.Is(err, ErrConfig) || !errors.Is(err, scheduler.ErrOptions) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"0 prefill", "-1 decode", "0 blocks", `"none"`, "service factor", "patience", "estimate error", "objectives"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := workload.ArXiv()
	s.Requests = 3000
	w, err := workload.Generate(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(ctx, Default(), w); !errors.Is(err, context.Canceled) {
		t.Errorf("a run that was given up: %v", err)
	}
}

// BenchmarkTrace is the whole trace that MOONCAKE_SIDECAR_TRACES has, or a small
// workload, on 16 nodes.
func BenchmarkTrace(b *testing.B) {
	w := small(b)
	if dir := os.Getenv("MOONCAKE_SIDECAR_TRACES"); dir != "" {
		f, err := os.Open(dir + "/conversation_trace.jsonl")
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if w, err = workload.Read(f, f.Name()); err != nil {
			b.Fatal(err)
		}
	}
	at, err := w.At(1, time.Second, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		simulate(b, Default(), at)
	}
	b.ReportMetric(float64(len(w.Requests)), "requests/op")
}
