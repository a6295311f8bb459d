package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const smallTrace = "../../bench/sim/experiment/testdata/small.jsonl"

func sim(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(append([]string{"mooncake-bench", "sim"}, args...), strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// TestSimJSON: a line for each table, the same bytes each time, and what goes on
// told elsewhere.
func TestSimJSON(t *testing.T) {
	args := []string{"schedule", "--trace", smallTrace, "--seeds", "2", "--json"}
	code, out, errOut := sim(args...)
	if code != 0 || !strings.Contains(errOut, "small: 1x, random, seed 1 of 2") {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	var table struct {
		Name, Answers string
		Columns       []string
		Rows          [][]any
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil {
		t.Fatal(err)
	}
	if table.Name != "schedule" || !strings.Contains(table.Answers, "Fig. 5") || len(table.Rows) != 20 || len(table.Columns) != len(table.Rows[0]) {
		t.Errorf("%+v", table)
	}
	if _, again, _ := sim(append(args, "--quiet")...); again != out {
		t.Error("the same command line printed something else")
	}
	if _, other, _ := sim(append(args, "--quiet", "--seed", "9")...); other == out {
		t.Error("another seed printed the same")
	}
}

// TestSimFiles: a page and plots.
func TestSimFiles(t *testing.T) {
	dir := t.TempDir()
	page, plots := filepath.Join(dir, "page.html"), filepath.Join(dir, "plots")
	code, out, errOut := sim("prefill-cost", "--quiet", "--html", page, "--svg", plots, "--trace", smallTrace)
	if code != 0 || errOut != "" || !strings.Contains(out, "answers S4 Fig. 14") || !strings.Contains(out, "27.377") {
		t.Fatalf("exit code %d, %s\n%s", code, errOut, out)
	}
	text, err := os.ReadFile(page)
	if err != nil || !bytes.Contains(text, []byte("<svg")) || !bytes.Contains(text, []byte("27.377")) {
		t.Errorf("page: %v", err)
	}
	if plot, err := os.ReadFile(filepath.Join(plots, "prefill-cost-1.svg")); err != nil || !bytes.HasPrefix(plot, []byte("<svg")) {
		t.Errorf("plot: %v", err)
	}
}

// TestSimSettings reach the simulation.
func TestSimSettings(t *testing.T) {
	_, plain, _ := sim("breakdown", "--quiet", "--trace", smallTrace)
	for _, setting := range [][]string{
		{"--prefill", "2"}, {"--cache-blocks", "40"}, {"--service-factor", "1.5"}, {"--threshold", "1"},
		{"--policy", "fifo", "--cache-blocks", "40"}, {"--link-gigabytes", "0.1"}, {"--estimate-error", "0.9"},
	} {
		code, out, errOut := sim(append([]string{"breakdown", "--quiet", "--trace", smallTrace}, setting...)...)
		if code != 0 || out == plain {
			t.Errorf("%v changes nothing: exit code %d, %s", setting, code, errOut)
		}
	}
	_, plain, _ = sim("baselines", "--quiet", "--trace", smallTrace)
	for _, setting := range [][]string{{"--decode", "2"}, {"--sequence-ms", "9"}} {
		if code, out, errOut := sim(append([]string{"baselines", "--quiet", "--trace", smallTrace}, setting...)...); code != 0 || out == plain {
			t.Errorf("%v changes nothing: exit code %d, %s", setting, code, errOut)
		}
	}
}

func TestSimRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, args string
		code       int
		want       string
	}{
		{"experiment", "fig5", exitUsage, `no experiment "fig5"`},
		{"argument", "cpp more", exitUsage, `no argument "more"`},
		{"seeds", "cpp --seeds 0", exitUsage, "--seeds"},
		{"nodes", "cpp --prefill 0", exitUsage, "0 prefill nodes"},
		{"policy", "cpp --policy mru", exitUsage, "mru"},
		{"threshold", "cpp --threshold 0.5", exitUsage, "threshold 0.5"},
		{"sequence", "cpp --sequence-ms=-1", exitUsage, "-0.001 s a sequence"},
		{"service", "cpp --service-factor Inf", exitUsage, "service factor +Inf"},
		{"no trace", "reject", exitFailed, "no trace"},
		{"no file", "reject --trace /nowhere.jsonl", exitFailed, "/nowhere.jsonl"},
		{"bad file", "reject --trace " + bad, exitFailed, "bad.jsonl:1: "},
		{"no folder", "cpp --html /nowhere/page.html", exitFailed, "/nowhere/page.html"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, _, errOut := sim(strings.Fields(test.args)...)
			if code != test.code || !strings.Contains(errOut, test.want) {
				t.Errorf("exit code %d, %q; want %d, %q", code, errOut, test.code, test.want)
			}
		})
	}
	if code, out, _ := sim("--help"); code != 0 || !strings.Contains(out, "mooncake-bench sim schedule --trace") || !strings.Contains(out, "pd-ratio") {
		t.Errorf("help: %d, %s", code, out)
	}
}
