package suite

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Targets of the daemons' start and of their memory beside the store's.
const (
	startMS   = 200
	memoryMiB = 64
)

func daemons() Part {
	return Part{
		Name: "daemons", Title: "How long daemons take to serve, and their memory beside the store's", Needs: []Need{needPython},
		Quick: 30 * time.Second, Full: 2 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Python, "bench/daemons/run.py", "--runs", strconv.Itoa(by(s, 5, 20)), "--binaries", s.Binaries, "--json", s.File("daemons.json")}
		},
		Read: func(s *Setting) (*Found, error) { return readDaemons(s.File("daemons.json")) },
	}
}

func readDaemons(path string) (*Found, error) {
	type spread struct{ Min, Median, Max float64 }
	var result struct {
		Store   string `json:"store_bytes"`
		Runs    int    `json:"runs"`
		Daemons map[string]struct {
			Start  spread `json:"start_ms"`
			Memory spread `json:"own_memory_mib"`
		} `json:"daemons"`
	}
	if err := readJSON(path, &result); err != nil {
		return nil, err
	}
	found := &Found{Files: []string{"daemons.json"}, Notes: []string{fmt.Sprintf("A store of %s; from exec to the answer to a hello.", result.Store)}}
	for _, name := range slices.Sorted(maps.Keys(result.Daemons)) {
		d := result.Daemons[name]
		start := Figure{Name: name + ", start", Unit: "ms", Value: d.Start.Median, Spread: &Spread{d.Start.Min, d.Start.Max, extremes}, Samples: result.Runs}
		start.atMost(startMS)
		memory := Figure{Name: name + ", own memory", Unit: "MiB", Value: d.Memory.Median, Spread: &Spread{d.Memory.Min, d.Memory.Max, extremes}, Samples: result.Runs}
		memory.atMost(memoryMiB)
		found.Figures = append(found.Figures, start, memory)
	}
	return found, nil
}
