package sideproc_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

// BenchmarkCluster is the way through the side process beside the calls of the
// in-tree connector, Python's with a buffer for each layer, over one master and
// one storage node on loopback TCP. The times are medians in microseconds a call.
func BenchmarkCluster(b *testing.B) {
	python := mooncaketest.Python(b)
	master := mooncaketest.StartMaster(b, python)
	mooncaketest.StartPeer(b, python, master, 256<<20)
	inTree := mooncaketest.StartPeer(b, python, master, 0)
	memory := newMemory(b, 64<<20)
	e := run(b, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory})
	await(b, e, isReady)
	for _, c := range []struct{ keys, size, layers int }{
		{1, 0, 1}, {64, 0, 1}, {1024, 0, 1}, {4096, 0, 1}, // questions only
		{1, 64 << 10, 32}, {16, 64 << 10, 32}, {128, 64 << 10, 1}, {32, 1 << 20, 32}, {16, 2 << 20, 32},
	} {
		b.Run(fmt.Sprintf("keys=%d/bytes=%d/layers=%d", c.keys, c.size, c.layers), func(b *testing.B) {
			rounds := 0
			ours := map[string][]float64{}
			theirs := map[string][]float64{}
			for b.Loop() {
				// In turns, each the first as often, so that what else the machine does falls
				// on both.
				name := fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), rounds)
				for turn := range 2 {
					if rounds%2 == turn {
						roundOfOurs(b, e, name, c.keys, uint64(c.size), ours)
						continue
					}
					var round map[string]float64
					inTree.Ask("time", map[string]any{"run": name + "-in-tree", "keys": c.keys, "size": c.size, "parts": c.layers, "rounds": 1}, &round)
					for what, us := range round {
						theirs[what] = append(theirs[what], us)
					}
				}
				rounds++
			}
			for what, times := range ours {
				b.ReportMetric(median(times), "µs-"+what)
				b.ReportMetric(median(theirs[what]), "µs-in-tree-"+what)
			}
			b.ReportMetric(0, "ns/op") // of everything together: tells nothing
		})
	}
}

func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Clone(of)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// roundOfOurs makes each call once.
func roundOfOurs(b *testing.B, e *sideproc.Engine, name string, keys int, size uint64, times map[string][]float64) {
	b.Helper()
	objects := make([]mooncake.Object, keys)
	names, absent := make([]string, keys), make([]string, keys)
	for i := range objects {
		names[i] = fmt.Sprintf("%s@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@%064x", name, i)
		absent[i] = names[i] + "0"
		objects[i] = mooncake.Object{Key: names[i], Range: mooncake.Range{Offset: uint64(i) * size, Bytes: size}}
	}
	timed := func(what string, want mooncake.Answer, call func() ([]mooncake.Answer, error)) {
		begun := time.Now()
		answers, err := call()
		times[what] = append(times[what], float64(time.Since(begun).Nanoseconds())/1e3)
		if err != nil || slices.ContainsFunc(answers, func(a mooncake.Answer) bool { return a != want }) {
			b.Fatalf("%s: %v, %v", what, answers, err)
		}
	}
	timed("absent", 0, func() ([]mooncake.Answer, error) { return e.Exist(b.Context(), absent) })
	if size == 0 {
		return
	}
	timed("put", 0, func() ([]mooncake.Answer, error) { return e.Put(b.Context(), mooncake.Replication{}, objects) })
	timed("get", mooncake.Answer(size), func() ([]mooncake.Answer, error) { return e.Get(b.Context(), objects) })
	timed("present", 1, func() ([]mooncake.Answer, error) { return e.Exist(b.Context(), names) })
	if _, err := e.Remove(b.Context(), names); err != nil {
		b.Fatal(err)
	}
}
