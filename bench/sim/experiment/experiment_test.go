package experiment

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
)

func small(t *testing.T) *workload.Workload {
	t.Helper()
	f, err := os.Open("testdata/small.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := workload.Read(f, f.Name())
	if err != nil {
		t.Fatal(err)
	}
	w.Name = "small"
	return w
}

// TestAll runs every experiment on a small trace, twice: the same bytes, tables
// with rows, and a page.
func TestAll(t *testing.T) {
	var text [2]bytes.Buffer
	for i := range text {
		s := setting(2)
		s.Traces = []*workload.Workload{small(t)}
		progress := 0
		s.Progress = func(string) { progress++ }
		for _, e := range All() {
			if e.Name == "e2e" && (i > 0 || testing.Short()) {
				continue // hundreds of runs
			}
			tables, err := e.Do(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			plots := 0
			for _, table := range tables {
				plots += len(table.Plots)
				if table.Name != e.Name || table.Title == "" || table.Answers == "" || table.Parameters == "" || len(table.Rows) == 0 {
					t.Errorf("%s has a table without title, source, parameters or rows: %+v", e.Name, table)
				}
			}
			if plots == 0 {
				t.Errorf("%s draws no plot", e.Name)
			}
			if e.Name == "e2e" {
				continue
			}
			if err := report.JSON(&text[i], tables); err != nil {
				t.Fatal(err)
			}
			if err := report.HTML(&text[i], e.Name, tables); err != nil {
				t.Fatal(err)
			}
		}
		if progress == 0 {
			t.Error("nobody was told what is being run")
		}
	}
	if !bytes.Equal(text[0].Bytes(), text[1].Bytes()) {
		t.Error("the same seed gave other bytes")
	}
	for _, bad := range []string{"NaN", "Inf"} {
		if bytes.Contains(text[0].Bytes(), []byte(bad)) {
			t.Errorf("the results have %s", bad)
		}
	}
}

// TestTraceIsNeeded: an experiment that replays says so when it has nothing to.
func TestTraceIsNeeded(t *testing.T) {
	needing := 0
	for _, e := range All() {
		if !e.NeedsTrace {
			if e.Name == "e2e" {
				continue // hundreds of runs, above
			}
			tables, err := e.Do(t.Context(), setting(1))
			if err != nil || len(tables) == 0 || len(tables[0].Plots) == 0 {
				t.Errorf("%s without a trace: %d tables, %v; want one with a plot", e.Name, len(tables), err)
			}
			continue
		}
		needing++
		if _, err := e.Do(t.Context(), setting(1)); !errors.Is(err, ErrTrace) {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
	if needing < 5 {
		t.Errorf("only %d experiments replay", needing)
	}
}

// TestProductionCode: the simulator drives what the daemons run, and neither it nor
// the scheduler can reach for a socket, a file or a role.
func TestProductionCode(t *testing.T) {
	const module = "github.com/mooncake-sidecar/sidecar/"
	deps := func(path string) []string {
		out, err := exec.Command("go", "list", "-deps", module+path).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	simulator := deps("bench/sim/cluster")
	for _, want := range []string{"internal/index", "internal/evict", "conductor/scheduler"} {
		if !slices.Contains(simulator, module+want) {
			t.Errorf("the simulator does not use %s", want)
		}
	}
	for _, path := range []string{"lookupd", "worker", "store/embedded", "internal/daemon"} {
		if slices.Contains(simulator, module+path) {
			t.Errorf("the simulator uses %s", path)
		}
	}
	for _, list := range [][]string{simulator, deps("conductor/scheduler")} {
		if slices.Contains(list, "net") || slices.Contains(list, "os/exec") {
			t.Error("it can do I/O")
		}
	}
	for _, path := range deps("conductor/scheduler") {
		if strings.HasPrefix(path, module) && path != module+"conductor/scheduler" {
			t.Errorf("the scheduler uses %s", path)
		}
	}
}
