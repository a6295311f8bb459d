package vllmdiff_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// BenchmarkBesideVLLM times the same question over 8,192 chunks that are all
// stored, here and in vLLM's Python, whose set of stored keys costs it a probe
// as ours does. It reports vLLM's time and the ratio.
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
	for name, groups := range map[string][]coordcases.Group{
		"full":            {full},
		"full, 3 windows": {full, window, window, window},
		"4 full":          {full, full, full, full},
	} {
		b.Run(name, func(b *testing.B) {
			c := &vllmdiff.Case{TP: 1, PCP: 1, DCP: 1, PP: 1, KVHeads: 1, Case: coordcases.Case{
				Op: "time", Groups: groups, L: 16, H: 16, N: chunks, M: chunks * 16,
			}}
			text, err := vllm.Ask(c)
			if err != nil {
				b.Fatal(err)
			}
			var theirs struct{ NS float64 }
			if err := json.Unmarshal([]byte(text), &theirs); err != nil {
				b.Fatal(err)
			}
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
			b.ReportAllocs()
			for b.Loop() {
				if hit, err := co.HitLength(chunks, chunks*16, true, exists); err != nil || hit.Tokens != chunks*16 {
					b.Fatal(hit, err)
				}
			}
			ours := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			b.ReportMetric(theirs.NS, "vllm-ns/op")
			b.ReportMetric(theirs.NS/ours, "ratio")
		})
	}
}
