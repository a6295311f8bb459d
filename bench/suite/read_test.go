package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// samples of what parts write, by reader.
func samples() map[string]struct {
	read func(path string) (*Found, error)
	text string
	// want are figures, as "name: value unit [targets]".
	want []string
} {
	return map[string]struct {
		read func(path string) (*Found, error)
		text string
		want []string
	}{
		"daemons": {readDaemons, `{"store_bytes": "4GiB", "runs": 5, "daemons": {"w": {"start_ms": {"min": 9, "median": 10, "max": 300}, "own_memory_mib": {"min": 60, "median": 70, "max": 80}}}}`,
			[]string{"w, start: 10 ms [<= 200: met, within the spread]", "w, own memory: 70 MiB [<= 64: MISSED, within the spread]"}},
		"lookup": {readLookup, `{"asked_chunks": 8192, "other_chunks": 1000000, "rows": [{"question": "present", "client": "shim", "server": "ours", "samples": 15, "median_us": 400, "p10_us": 300, "p90_us": 450, "target_us": 500, "ratio_to_intree": 0.03, "target_ratio": 0.02},
			{"question": "present", "client": "vllm", "server": "intree", "samples": 15, "median_us": 40000, "p10_us": 1, "p90_us": 2}], "crowds": [{"question": "present", "clients": 64, "samples": 640, "median_us": 100, "p99_us": 900, "p99_to_median": 9}]}`,
			[]string{"present; server ours, client shim: 400 us [<= 500: met; ratio <= 0.02: MISSED]", "present; server intree, client vllm: 40000 us []", "present; 64 clients at once, p99: 900 us [ratio <= 10: met]"}},
		"datapath": {readDatapath, `[{"size": "1MB", "kind": "warm", "round": 0, "wall_us": 2000}, {"size": "1MB", "kind": "copy-in", "round": 0, "wall_us": 4000}, {"size": "1MB", "kind": "store", "round": 0, "wall_us": 3000}]`,
			[]string{"1MB, load: 2 ms []", "1MB, first store: 3 ms []"}},
		"hooks": {readHooks, `{"us_per_step_by_round": {"ours": [10, 30, 20], "in_tree": [100, 100, 400]}, "target": 0.2}`,
			[]string{"ours, all hooks of a step that runs the model: 20 us [ratio <= 0.2: met, within the spread]", "in-tree, the same: 100 us []"}},
		"steps": {readSteps, `{"clock": "wall", "rows": [{"case": "c", "what": "decode", "steps": 100, "scheduler": {"us": {"ours": {"median": 50, "p99": 90}, "in_tree": {"median": 100, "p99": 200}}, "ratio": {"median": 0.5, "low": 0.4, "high": 0.6}, "target_us": 300},
			"worker": {"us": {"ours": {"median": 5, "p99": 9}, "in_tree": {"median": 10, "p99": 20}}, "ratio": {"median": 0.5, "low": 0.4, "high": 0.6}, "target_us": null}}]}`,
			[]string{"c: decode, scheduler: 50 us [<= 300: met]", "c: decode, worker: 5 us []"}},
		"cache": {readCache, `{"policy": "lru", "capacity": 100, "block_hit_ratio": 0.2}` + "\n" + `{"policy": "min", "capacity": 100, "block_hit_ratio": 0.4}`,
			[]string{"lru, 100 blocks: 0.2 []", "min, 100 blocks: 0.4 []"}},
		"retention": {readRetention, `{"model": "m", "interval_tokens": -1, "hit_share": 0.5, "stored_bytes": 2147483648}`,
			[]string{"m, store_retention dense: tokens found: 0.5 []", "m, store_retention dense: stored: 2 GiB []"}},
		"sim": {readSim, `{"name": "schedule", "title": "t", "answers": "a", "columns": ["x", "y"], "rows": [["r", 1.5]]}`, nil},
		"go": {func(path string) (*Found, error) { return readGo(path, map[string]float64{"index: Slow": 1e6}) },
			"goos: linux\npkg: github.com/mooncake-sidecar/sidecar/internal/index\nBenchmarkFind/present-2  100  240 ns/op  0 B/op  0 allocs/op\nBenchmarkFind/present-2  100  260 ns/op  0 B/op\nBenchmarkSlow-2  1  2500000 ns/op  3.5 hits\nBenchmarkOdd-2\nPASS\n",
			[]string{"index: Find/present: 250 ns []", "index: Slow: 2.5 ms [<= 1: MISSED]", "index: Slow: 3.5 hits []"}},
		"compare": {readCompare, `{"options": {"with": ["null", "intree", "ours"], "models": ["kv2k"], "tokens": [2000], "parts": ["warm"], "max_others": 0.1, "seed": 1}, "pairs": [{"part": "warm", "model": "kv2k", "tokens": 2000, "others_share": 1, "seen":
			{"null": {"store_warm_ms": 12, "engine_warm_ms": 10}, "intree": {"store_warm_ms": 20, "engine_warm_ms": 10}, "ours": {"store_warm_ms": 18, "engine_warm_ms": 10}}}]}`,
			[]string{"warm, kv2k, 2000 tokens: overhead of null: 2 ms []", "warm, kv2k, 2000 tokens: overhead of intree: 10 ms []", "warm, kv2k, 2000 tokens: overhead of ours: 8 ms [<= 6: MISSED]"}},
		"replay": {readReplays, `{"trace": "t", "baseline": "none", "rounds": 1, "systems": [{"name": "none", "requests": 10, "answered": 10, "as_expected": 5, "mean_ms": 100}, {"name": "ours", "requests": 10, "answered": 10, "as_expected": 9, "mean_ms": 50, "mean_ttft_ratio": {"value": 0.5, "low": 0.4, "high": 0.6}}]}`,
			[]string{"t, none: share of requests as expected: 0.5 []", "t, none: mean time to first token: 100 ms []", "t, ours: share of requests as expected: 0.9 [>= 1: MISSED]", "t, ours: mean time to first token: 50 ms []"}},
		"router": {readRouter, `{"requests_per_second": 200, "engines": 3, "prompt_tokens": 1024, "kinds": [{"prompts": "ids", "pairs": 100, "straight": {"median": 1, "p99": 2}, "through": {"median": 1.5, "p99": 4}, "added_median": {"value": 0.5, "low": 0.4, "high": 0.6}}]}`,
			[]string{"ids: added to the median: 0.5 ms []", "ids: p99 through the router: 4 ms []"}},
		"gpu": {readGPU, `{"device": "x", "findings": [{"check": "bandwidth", "ok": false, "figures": {"GB/s": 20.5, "way": "kernel"}}]}`,
			[]string{"bandwidth: holds: 0 [>= 1: MISSED]", "bandwidth: GB/s: 20.5 []"}},
		"indexer": {readIndexer, `{"asks": [{"system": "x", "form": "f", "tokens": 100, "hit": true, "round": 0, "median_ns": 2000000}]}`, []string{"query, 100 tokens, hit, f: x: 2 ms []"}},
	}
}

func TestReaders(t *testing.T) {
	for name, sample := range samples() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			write := func(text string) {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(sample.text)
			found, err := sample.read(path)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range found.Figures {
				f := &found.Figures[i]
				var targets []string
				for j := range f.Targets {
					targets = append(targets, f.Targets[j].String())
				}
				got = append(got, f.Name+": "+withUnit(f.Value, f.Unit)+" ["+strings.Join(targets, "; ")+"]")
			}
			if name == "indexer" { // which figures it has is its own affair
				got = got[:min(1, len(got))]
			}
			if strings.Join(got, "\n") != strings.Join(sample.want, "\n") {
				t.Errorf("figures\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(sample.want, "\n"))
			}
			if name == "sim" && (len(found.Sections) != 1 || found.Sections[0].Tables[0].Rows[0][1].Text != "1.5" || len(found.Detail) == 0) {
				t.Errorf("%+v", found)
			}
			if name != "go" { // whose output has more than results
				write(sample.text[:len(sample.text)-5])
				if _, err := sample.read(path); err == nil {
					t.Error("half a result was read")
				}
			}
			if _, err := sample.read(path + "x"); err == nil {
				t.Error("a file that is not there was read")
			}
		})
	}
}

func FuzzParseGo(f *testing.F) {
	f.Add("BenchmarkFind/present-2  100  240 ns/op  0 B/op  0 allocs/op")
	f.Fuzz(func(t *testing.T, line string) {
		if l, ok := parseGo("p", line); ok && (len(l.units) == 0 || len(l.units) != len(l.values)) {
			t.Errorf("%q: %+v", line, l)
		}
	})
}
