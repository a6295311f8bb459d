package coordinator_test

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

const benchChunks = 8192

// benchConfigs are the groups that the benchmarks look up: one full-attention
// group, four groups of two specs, and four of four.
func benchConfigs() map[string]coordinator.Config {
	full := kv.GroupSpec{Kind: kv.FullAttention, BlockTokens: 16}
	window := kv.GroupSpec{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 1024}
	mamba := kv.GroupSpec{Kind: kv.MambaAlign, BlockTokens: 16}
	chunked := kv.GroupSpec{Kind: kv.ChunkedLocal, BlockTokens: 16, WindowTokens: 8192}
	of := func(groups ...kv.GroupSpec) coordinator.Config {
		return coordinator.Config{Groups: groups, HashBlockTokens: 16, SchedulerBlockTokens: 16}
	}
	return map[string]coordinator.Config{
		"full":                        of(full),
		"full, 3 windows":             of(full, window, window, window),
		"full, window, mamba, chunks": of(full, window, mamba, chunked),
		"4 full":                      of(full, full, full, full),
	}
}

// BenchmarkHitLength is the time of the rules over probes that cost next to
// nothing; BenchmarkProbes is that of the probes alone.
func BenchmarkHitLength(b *testing.B) {
	for name, cfg := range benchConfigs() {
		b.Run(name, func(b *testing.B) {
			co := mustNew(b, cfg)
			exists := benchStore()
			b.ReportAllocs()
			for b.Loop() {
				hit, err := co.HitLength(benchChunks, benchChunks*16, true, exists)
				if err != nil || hit.Tokens != benchChunks*16 {
					b.Fatal(hit, err)
				}
			}
		})
	}
}

// BenchmarkLookup is a whole lookup into a buffer of the caller's.
func BenchmarkLookup(b *testing.B) {
	for name, cfg := range benchConfigs() {
		b.Run(name, func(b *testing.B) {
			co := mustNew(b, cfg)
			exists := benchStore()
			var buffer [4]coordinator.TailKeyBoundary
			b.ReportAllocs()
			for b.Loop() {
				got, err := co.LookupInto(buffer[:0], benchChunks*16+1, benchChunks, exists)
				if err != nil || got.HitTokens != benchChunks*16 {
					b.Fatal(got, err)
				}
			}
		})
	}
}

func BenchmarkProbes(b *testing.B) {
	exists := benchStore()
	for b.Loop() {
		for i := range benchChunks {
			if exists(0, i) != kv.Present {
				b.Fatal(i)
			}
		}
	}
}

func benchStore() coordinator.ExistsFunc {
	stored := make([]kv.Existence, benchChunks)
	for i := range stored {
		stored[i] = kv.Present
	}
	return func(_, hashIndex int) kv.Existence { return stored[hashIndex] }
}

// TestNoAllocation: lookups allocate nothing, whatever the groups.
func TestNoAllocation(t *testing.T) {
	for name, cfg := range benchConfigs() {
		co := mustNew(t, cfg)
		exists := benchStore()
		var buffer [4]coordinator.TailKeyBoundary
		if n := testing.AllocsPerRun(10, func() {
			if _, err := co.LookupInto(buffer[:0], 1600, 100, exists); err != nil {
				t.Fatal(err)
			}
			if _, err := co.HitLength(100, 1600, true, exists); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
