package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

func TestGenerate(t *testing.T) {
	dir := t.TempDir()
	first, second, profile := filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl"), filepath.Join(dir, "p.json")
	generated := func(args ...string) []byte {
		t.Helper()
		var out, errOut bytes.Buffer
		if code := run(append([]string{"mooncake-bench", "generate"}, args...), nil, &out, &errOut); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, &errOut)
		}
		return out.Bytes()
	}
	generated("--workload", "l-eval", "--requests", "400", "--rate", "5", "--out", first)
	again := generated("--workload", "l-eval", "--requests", "400", "--rate", "5")
	text, err := os.ReadFile(first)
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("a file and standard output differ: %v", err)
	}
	fromTrace := generated("--like", first, "--save-profile", profile, "--seed", "3")
	generated("--profile", profile, "--requests", "400", "--seed", "3", "--out", second)
	if text, err := os.ReadFile(second); err != nil || !bytes.Equal(text, fromTrace) {
		t.Errorf("a trace's statistics and the kept ones give other traces: %v", err)
	}
	if requests, faults, err := trace.ReadAll(bytes.NewReader(fromTrace), "t", 0); err != nil || len(faults) > 0 || len(requests) != 400 {
		t.Errorf("%d requests, %v, %v", len(requests), faults, err)
	}
}

func TestGenerateRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, args string
		code       int
		want       string
	}{
		{"nothing", "", exitUsage, "one of --like"},
		{"two", "--like x --workload arxiv", exitUsage, "one of --like"},
		{"workload", "--workload toolagent", exitUsage, "simulated-16k"},
		{"requests", "--workload arxiv --requests=-1", exitUsage, "--requests"},
		{"argument", "--workload arxiv more", exitUsage, "more"},
		{"rate", "--workload arxiv --rate 0", exitUsage, "--rate: 0 requests a second"},
		{"rate NaN", "--workload arxiv --rate NaN", exitUsage, "--rate: NaN"},
		{"rate too small", "--workload arxiv --rate 1e-300", exitUsage, "--rate: 1e-300"},
		{"no requests", "--workload arxiv --requests 0", exitUsage, "--requests: 0"},
		{"too long", "--workload arxiv --rate 1e-6 --requests 100000", exitFailed, `field "timestamp"`},
		{"no file", "--like /nowhere.jsonl", exitFailed, "/nowhere.jsonl"},
		{"bad trace", "--like " + bad, exitFailed, "bad.jsonl:1: "},
		{"bad profile", "--profile " + bad, exitFailed, "bad.jsonl: wrong profile"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := run(append([]string{"mooncake-bench", "generate"}, strings.Fields(test.args)...), nil, &out, &errOut)
			if code != test.code || !strings.Contains(errOut.String(), test.want) {
				t.Errorf("exit code %d, %q; want %d, %q", code, &errOut, test.code, test.want)
			}
		})
	}
}
