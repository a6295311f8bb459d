package suite

import (
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
)

// goLimits are the most that Go benchmarks may take, in ns/op, by the begin of their
// names.
func goLimits() map[string]float64 {
	return map[string]float64{"sim/cluster: Trace": 2e9}
}

func microbenchmarks() Part {
	return Part{
		Name: "go", Title: "Parts of the daemons, the index and the scheduler by themselves (Go benchmarks)",
		Quick: 120 * time.Second, Full: 60 * time.Minute,
		Command: func(s *Setting) []string {
			args := []string{"go", "test", "-run", "^$", "-benchmem", "-count", strconv.Itoa(by(s, 3, 10)), "-bench"}
			if s.Budget == Quick {
				return append(args, "^Benchmark(HitLength|Lookup|Find|Turnover|Tap|TapAndDrain|Get|RoundTrip|Decode|Decide|Trace|Known)$", "-benchtime", "50ms",
					"./coordinator", "./internal/index", "./internal/evict", "./internal/missratio", "./internal/unary", "./internal/zmqx", "./conductor/kvevents", "./conductor/scheduler", "./bench/sim/cluster", "./lookupd", "./store/mooncake/level")
			}
			return append(args, ".", "-timeout", "55m", "./coordinator", "./internal/...", "./conductor/...", "./store/embedded/...", "./store/disk/...", "./store/mooncake/level", "./lookupd/...", "./worker/...", "./bench/sim/...", "./bench/replay/...")
		},
		Read: func(s *Setting) (*Found, error) { return readGo(s.Output("go"), goLimits()) },
	}
}

func besideVLLM() Part {
	return Part{
		Name: "coordinator", Title: "The coordinator and vLLM's own rules, by turns", Needs: []Need{needPython},
		Quick: 60 * time.Second, Full: 10 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{"go", "test", "-run", "^$", "-bench", "Beside", "-benchtime", by(s, "200ms", "2s"), "./coordinator/vllmdiff"}
		},
		Read: func(s *Setting) (*Found, error) { return readGo(s.Output("coordinator"), nil) },
	}
}

func clusterCalls() Part {
	return Part{
		Name: "cluster-calls", Title: "Calls to a Mooncake cluster through its client's process", Needs: []Need{needMooncake},
		Quick: 60 * time.Second, Full: 10 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{"go", "test", "-run", "^$", "-bench", "^BenchmarkCluster$/keys=32/", "-benchtime", by(s, "10x", "40x"), "-count", strconv.Itoa(by(s, 1, 5)), "./store/mooncake/sideproc"}
		},
		Read: func(s *Setting) (*Found, error) { return readGo(s.Output("cluster-calls"), nil) },
	}
}

// goLine is one line of a benchmark's output.
type goLine struct {
	name string
	// values by unit, in the order of the line.
	units  []string
	values []float64
}

// parseGo reads lines of the form "BenchmarkName-2  100  12.5 ns/op  3 hits". Others are
// none of ours.
func parseGo(pkg, line string) (goLine, bool) {
	fields := strings.Fields(line)
	if len(fields) < 4 || len(fields)%2 != 0 || !strings.HasPrefix(fields[0], "Benchmark") {
		return goLine{}, false
	}
	if _, err := strconv.ParseUint(fields[1], 10, 64); err != nil {
		return goLine{}, false
	}
	name := strings.TrimPrefix(fields[0], "Benchmark")
	if dash := strings.LastIndexByte(name, '-'); dash > 0 { // the number of processors
		if _, err := strconv.Atoi(name[dash+1:]); err == nil {
			name = name[:dash]
		}
	}
	l := goLine{name: pkg + ": " + name}
	for i := 2; i < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return goLine{}, false
		}
		l.units, l.values = append(l.units, fields[i+1]), append(l.values, v)
	}
	return l, true
}

// shortPackage is a package's path without what all of ours have.
func shortPackage(path string) string {
	for _, prefix := range []string{"github.com/mooncake-sidecar/sidecar/", "internal/", "bench/"} {
		path = strings.TrimPrefix(path, prefix)
	}
	return path
}

// readGo reads what "go test -bench" printed; several counts are one figure. Bytes and
// allocations stay in the file.
func readGo(path string, limits map[string]float64) (*Found, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	type key struct{ name, unit string }
	var keys []key
	samples := map[key][]float64{}
	pkg := ""
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "pkg: "); ok {
			pkg = shortPackage(strings.TrimSpace(rest))
			continue
		}
		l, ok := parseGo(pkg, line)
		if !ok {
			continue
		}
		for i, unit := range l.units {
			if unit == "B/op" || unit == "allocs/op" {
				continue
			}
			k := key{l.name, unit}
			if samples[k] == nil {
				keys = append(keys, k)
			}
			samples[k] = append(samples[k], l.values[i])
		}
	}
	found := &Found{}
	for _, k := range keys {
		found.Figures = append(found.Figures, goFigure(k.name, k.unit, samples[k], limits))
	}
	return found, nil
}

// goFigure shows times in a unit of people.
func goFigure(name, unit string, samples []float64, limits map[string]float64) Figure {
	by, limit := 1.0, 0.0
	if unit == "ns/op" {
		for begin, most := range limits {
			if strings.HasPrefix(name, begin) {
				limit = most
			}
		}
		unit = "ns"
		for _, larger := range []struct {
			unit string
			from float64
		}{{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}} {
			if compare.Median(samples) >= larger.from {
				unit, by = larger.unit, larger.from
			}
		}
	}
	scaled := make([]float64, len(samples))
	for i := range samples {
		scaled[i] = samples[i] / by
	}
	f := figureOf(name, unit, scaled)
	if limit > 0 {
		f.atMost(limit / by)
	}
	return f
}
