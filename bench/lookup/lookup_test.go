package lookup

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRun measures a small index with a daemon that is built for it: the segment
// is taken over, answers are right, and every row is there.
func TestRun(t *testing.T) {
	// A socket's path must be short.
	t.Setenv("TMPDIR", "/tmp")
	r, err := Run(t.Context(), &Options{
		Binaries: daemonsFor(t), Source: "../..", Asked: 300, Others: 1000, Rounds: 3, Clients: 4, Progress: func(what string) { t.Log(what) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for i := range r.Rows {
		if want := []string{"go", "go chain"}[i%2]; r.Rows[i].Client != want {
			t.Errorf("row %d is of %s, want %s", i, r.Rows[i].Client, want)
		}
		if i%2 == 0 {
			seen = append(seen, r.Rows[i].Question)
		}
		if r.Rows[i].MedianMicros <= 0 || r.Rows[i].P90Micros < r.Rows[i].P10Micros {
			t.Errorf("%+v", r.Rows[i])
		}
	}
	if got, want := strings.Join(seen, "; "), "present, TP1; present, TP8; 16 present, TP1; 16 present, TP8; "+
		"first missing, TP1; first missing, TP8; 16 first missing, TP1; 16 first missing, TP8"; got != want || len(r.Crowds) != 4 {
		t.Errorf("rows of %s, %d crowds", got, len(r.Crowds))
	}
	for name := range limitsMicros {
		if !strings.Contains(strings.Join(seen, "; "), name) {
			t.Errorf("a target for %q, which is not asked", name)
		}
	}
}

// TestRunCluster measures few chunks of a real cluster: every client of both servers
// finds all of them in it, whether ours has to ask or not, and every row is there.
func TestRunCluster(t *testing.T) {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no Python with vLLM and Mooncake")
	}
	t.Setenv("TMPDIR", "/tmp")
	r, err := RunCluster(t.Context(), &Options{
		Binaries: daemonsFor(t), Source: "../..", Python: python, Asked: 300, Rounds: 2, Progress: func(what string) { t.Log(what) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for i := range r.Rows {
		row := &r.Rows[i]
		seen = append(seen, row.Question+", "+row.Client+" "+row.Server)
		compared := row.Server == ours && row.Client != "go"
		if row.MedianMicros <= 0 || row.Ratio > 0 != compared || row.TargetRatio > 0 != (compared && strings.HasPrefix(row.Question, "present")) {
			t.Errorf("%+v", row)
		}
	}
	var want []string
	for _, what := range []string{known, asked} {
		for _, name := range []string{"present, TP1", "present, TP8", "first missing, TP1", "first missing, TP8"} {
			for _, client := range []string{"shim ours", "vllm ours", "vllm intree", "go ours"} {
				want = append(want, name+", "+what+", "+client)
			}
		}
	}
	if !slices.Equal(seen, want) {
		t.Errorf("rows of %q", seen)
	}
	if _, err := RunCluster(t.Context(), &Options{Asked: 1, Rounds: 1}); err == nil {
		t.Error("measured without Python")
	}
}

// daemonsFor builds mooncake-lookupd and returns where it is.
func daemonsFor(t *testing.T) string {
	t.Helper()
	binaries := t.TempDir()
	build := exec.Command("go", "build", "-o", binaries, "github.com/mooncake-sidecar/sidecar/cmd/mooncake-lookupd")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		t.Fatal(err)
	}
	return binaries
}

// TestRunTellsWhatIsMissing: without its programs a run ends with their names.
func TestRunTellsWhatIsMissing(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp")
	o := Options{Binaries: t.TempDir(), Asked: 1, Rounds: 1, Progress: func(string) {}}
	if _, err := Run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "mooncake-lookupd") {
		t.Errorf("without a daemon: %v", err)
	}
	script := filepath.Join(o.Binaries, "mooncake-lookupd")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no such luck\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("with a daemon that ends: %v", err)
	}
	if _, err := Run(t.Context(), &Options{Asked: 0, Rounds: 1}); err == nil {
		t.Error("nothing to ask was taken")
	}
}

func TestJudge(t *testing.T) {
	r := Result{
		Rows: []Row{
			{Question: "present, TP1", Client: "vllm", Server: ours, MedianMicros: 400},
			{Question: "present, TP1", Client: "vllm", Server: theirs, MedianMicros: 40_000},
			{Question: "present, TP8", Client: "vllm", Server: ours, MedianMicros: 900},
			{Question: "present, TP8", Client: "vllm", Server: theirs, MedianMicros: 30_000},
			{Question: "present, TP1", Client: "go", Server: ours, MedianMicros: 600},
		},
		Crowds: []Crowd{{Question: "present, TP1", Clients: 64, Ratio: 9}, {Question: "present, TP8", Clients: 64, Ratio: 11}},
	}
	r.judge(limitsMicros, sharesOf(limitsMicros))
	if len(r.Missed) != 4 {
		t.Fatalf("missed: %q", r.Missed)
	}
	for i, want := range []string{"TP8, client vllm: 900 us", "TP8, client vllm: 3.00 %", "TP1, client go: 600 us", "64 clients"} {
		if !strings.Contains(r.Missed[i], want) {
			t.Errorf("missed %q, want one about %q", r.Missed[i], want)
		}
	}
	if r.Rows[0].Ratio != 0.01 || r.Rows[4].Ratio != 0 {
		t.Errorf("ratios %v and %v", r.Rows[0].Ratio, r.Rows[4].Ratio)
	}
	var text, encoded bytes.Buffer
	r.Print(&text)
	if !strings.Contains(text.String(), "1.00 %") || strings.Count(text.String(), "MISSED") != 4 {
		t.Errorf("printed:\n%s", text.String())
	}
	if err := r.JSON(&encoded); err != nil || !json.Valid(encoded.Bytes()) {
		t.Errorf("%v in %s", err, encoded.String())
	}
}
