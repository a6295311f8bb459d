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
// one storage node on loopback TCP, in rounds of one call each. The times are medians
// in microseconds; a percentage is ours of the in-tree calls' in the same round, with
// its quartiles.
func BenchmarkCluster(b *testing.B) {
	python := mooncaketest.Python(b)
	master := mooncaketest.StartMaster(b, python)
	mooncaketest.StartPeer(b, python, master, 256<<20)
	inTree := mooncaketest.StartPeer(b, python, master, 0)
	memory := newMemory(b, 64<<20)
	e := run(b, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory})
	await(b, e, isReady)
	for _, c := range []callShape{
		{1, 0, 1}, {64, 0, 1}, {1024, 0, 1}, {4096, 0, 1}, // questions only
		{1, 64 << 10, 32}, {16, 64 << 10, 32}, {128, 64 << 10, 1}, {32, 1 << 20, 32}, {16, 2 << 20, 32},
	} {
		b.Run(fmt.Sprintf("keys=%d/bytes=%d/layers=%d", c.keys, c.size, c.layers), func(b *testing.B) {
			ours, theirs := callTimes{}, callTimes{}
			c.round(b, e, inTree, 0, callTimes{}, callTimes{}) // connects, and enters memory in page tables
			for i := 1; b.Loop(); i++ {
				c.round(b, e, inTree, i, ours, theirs)
			}
			for what, times := range ours {
				b.ReportMetric(quantile(times, 0.5), "µs-"+what)
				b.ReportMetric(quantile(theirs[what], 0.5), "µs-in-tree-"+what)
				share := make([]float64, len(times))
				for i := range share {
					share[i] = 100 * times[i] / theirs[what][i]
				}
				b.ReportMetric(quantile(share, 0.5), "%-"+what)
				b.ReportMetric(quantile(share, 0.25), "%-"+what+"-q1")
				b.ReportMetric(quantile(share, 0.75), "%-"+what+"-q3")
			}
			b.ReportMetric(0, "ns/op") // of everything together: tells nothing
		})
	}
}

// callShape is what a round's calls are for.
type callShape struct{ keys, size, layers int }

// callTimes are microseconds by what was called, one for each round.
type callTimes map[string][]float64

// quantile returns one of the values, 0 if there is none.
func quantile(of []float64, q float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// round makes each call once in both ways, by turns the first, so that what else the
// machine does falls on both. Nothing is left in the cluster.
func (c *callShape) round(b *testing.B, e *sideproc.Engine, inTree *mooncaketest.Peer, i int, ours, theirs callTimes) {
	b.Helper()
	name := fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), i)
	for turn := range 2 {
		if i%2 == turn {
			c.roundOfOurs(b, e, inTree, name, ours)
			continue
		}
		var took map[string]float64
		inTree.Ask("time", map[string]any{"run": name + "-in-tree", "keys": c.keys, "size": c.size, "parts": c.layers, "rounds": 1}, &took)
		for what, us := range took {
			theirs[what] = append(theirs[what], us)
		}
	}
}

func (c *callShape) roundOfOurs(b *testing.B, e *sideproc.Engine, inTree *mooncaketest.Peer, name string, times callTimes) {
	b.Helper()
	size := uint64(c.size)
	objects := make([]mooncake.Object, c.keys)
	names, absent := make([]string, c.keys), make([]string, c.keys)
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
	// The engine's Remove leaves what is leased, as these are: their room would be missing
	// for as long as the master's leases last.
	var code int
	if inTree.Ask("remove_all", map[string]any{"keys": names}, &code); code != 0 {
		b.Fatalf("remove: %d", code)
	}
}
