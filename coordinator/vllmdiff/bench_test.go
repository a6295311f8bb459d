package vllmdiff_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// BenchmarkBesideVLLM times the same question over 8,192 chunks that are all
// stored, here and in vLLM's Python, in turns: one question of each an iteration.
// Both sides look keys up in a set of their language, so that either time has
// probes in it. Times are medians; the ratio is the median over the iterations,
// with its quartiles and extremes.
func BenchmarkBesideVLLM(b *testing.B) {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		b.Skip("MOONCAKE_SIDECAR_PYTHON names no interpreter with vLLM")
	}
	vllm, err := vllmdiff.StartVLLM(b.Context(), python)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := vllm.Close(); err != nil {
			b.Error(err)
		}
	}()
	const chunks = 8192
	full := coordcases.Group{Kind: "full", B: 16}
	window := coordcases.Group{Kind: "swa", B: 16, W: 1024}
	for _, row := range []struct {
		name   string
		groups []coordcases.Group
	}{
		{"full", []coordcases.Group{full}},
		{"full, 3 windows", []coordcases.Group{full, window, window, window}},
		{"4 full", []coordcases.Group{full, full, full, full}},
	} {
		groups := row.groups
		b.Run(row.name, func(b *testing.B) {
			c := &vllmdiff.Case{TP: 1, PCP: 1, DCP: 1, PP: 1, KVHeads: 1, Case: coordcases.Case{
				Op: "time", Groups: groups, L: 16, H: 16, N: chunks, M: chunks * 16,
			}}
			co, err := coordinator.New(c.Config())
			if err != nil {
				b.Fatal(err)
			}
			type key struct {
				group int
				hash  [32]byte
			}
			stored := map[key]struct{}{}
			hash := func(i int) (h [32]byte) {
				h[0], h[1] = byte(i), byte(i>>8)
				return h
			}
			for g := range groups {
				for i := range chunks {
					stored[key{g, hash(i)}] = struct{}{}
				}
			}
			exists := func(group, hashIndex int) kv.Existence {
				if _, ok := stored[key{group, hash(hashIndex)}]; ok {
					return kv.Present
				}
				return kv.Absent
			}
			if _, err := vllm.Ask(c); err != nil { // it has to import vLLM first
				b.Fatal(err)
			}
			var ours, theirs, ratios []float64
			for b.Loop() {
				text, err := vllm.Ask(c)
				if err != nil {
					b.Fatal(err)
				}
				var timed struct{ NS float64 }
				if err := json.Unmarshal([]byte(text), &timed); err != nil {
					b.Fatal(err)
				}
				// As vLLM, which asks once before it times: caches are warm.
				if _, err := co.HitLength(chunks, chunks*16, true, exists); err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				hit, err := co.HitLength(chunks, chunks*16, true, exists)
				took := float64(time.Since(start).Nanoseconds())
				if err != nil || hit.Tokens != chunks*16 {
					b.Fatal(hit, err)
				}
				ours, theirs, ratios = append(ours, took), append(theirs, timed.NS), append(ratios, timed.NS/took)
			}
			b.ReportMetric(quantile(ours, 0.5), "ns/op")
			b.ReportMetric(quantile(theirs, 0.5), "vllm-ns/op")
			for name, q := range map[string]float64{"ratio": 0.5, "ratio-q1": 0.25, "ratio-q3": 0.75, "ratio-min": 0, "ratio-max": 1} {
				b.ReportMetric(quantile(ratios, q), name)
			}
			b.ReportMetric(float64(len(ratios)), "rounds")
		})
	}
}

// quantile returns a quantile of samples, of which there is one at least.
func quantile(samples []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
