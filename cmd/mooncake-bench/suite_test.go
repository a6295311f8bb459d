package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func ran(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(append([]string{"mooncake-bench"}, args...), strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestSuiteRefuses(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"extra"}, "no argument"},
		{[]string{"--budget", "half"}, "want quick or full"},
		{[]string{"--root", "../..", "--only", "nothing"}, "no such benchmark"},
		{[]string{"--root", t.TempDir()}, "not this project's repository"},
	} {
		if code, _, errOut := ran(append([]string{"suite"}, test.args...)...); code != exitUsage || !strings.Contains(errOut, test.want) {
			t.Errorf("%q: exit code %d: %s", test.args, code, errOut)
		}
	}
}

// TestSuite: a report is written though the benchmark is not possible here.
func TestSuite(t *testing.T) {
	dir := t.TempDir()
	code, out, errOut := ran("suite", "--root", "../..", "--out", dir, "--only", "cache", "--traces", dir, "--python", filepath.Join(dir, "none"))
	if code != 0 || !strings.Contains(out, "not possible here") || !strings.Contains(errOut, "report.html") {
		t.Errorf("exit code %d: %s\n%s", code, out, errOut)
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Benchmarks []struct{ Name, State, Why string }
	}
	if err := json.Unmarshal(text, &report); err != nil || len(report.Benchmarks) != 1 || report.Benchmarks[0].State != "not possible here" || !strings.Contains(report.Benchmarks[0].Why, "TRACES") {
		t.Errorf("%+v, %v", report, err)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "report.html")); err != nil || !bytes.Contains(page, []byte("Not possible here: no traces")) {
		t.Errorf("the page: %v\n%s", err, page)
	}
}

const requestsCSV = `line,due_ms,sent_ms,first_token_ms,end_ms,ttft_ms,tail_tbt_ms,max_gap_ms,prompt_tokens,wanted_tokens,output_tokens,cached_tokens,must_be_cached,may_be_cached,cached_in_order,error
1,0,0,100,100,100.000,0,0,64,1,1,0,0,0,0,
2,0,0,100,100,80.000,0,0,64,1,1,32,32,32,32,
`

func TestRounds(t *testing.T) {
	dir := t.TempDir()
	base, ours := filepath.Join(dir, "base.csv"), filepath.Join(dir, "ours.csv")
	for path, text := range map[string]string{base: requestsCSV, ours: strings.Replace(requestsCSV, "80.000", "20.000", 1)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page := filepath.Join(dir, "page.html")
	code, out, errOut := ran("rounds", "--html", page, "none@1="+base, "ours@1="+ours)
	if code != 0 || !strings.Contains(out, "2 of 2") || !strings.Contains(out, "0.667 [") || !strings.Contains(out, "0.250 [") {
		t.Errorf("exit code %d: %s\n%s", code, out, errOut)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		args []string
		code int
	}{{nil, exitUsage}, {[]string{"ours=x"}, exitUsage}, {[]string{"ours@x=y"}, exitUsage}, {[]string{"ours@1=" + filepath.Join(dir, "no")}, exitFailed}, {[]string{"a@1=" + base, "a@1=" + ours}, exitFailed}} {
		if code, _, errOut := ran(append([]string{"rounds"}, test.args...)...); code != test.code || errOut == "" {
			t.Errorf("%q: exit code %d, %s", test.args, code, errOut)
		}
	}
}

func TestRetention(t *testing.T) {
	const small = "../../bench/sim/experiment/testdata/small.jsonl"
	code, out, errOut := ran("retention", "--trace", small, "--models", "gpt-oss-20b", "--json")
	if lines := strings.Count(out, "\n"); code != 0 || lines != 5 || !strings.Contains(out, `"model":"gpt-oss-20b"`) {
		t.Errorf("exit code %d, %d lines: %s\n%s", code, lines, out, errOut)
	}
	if code, out, _ := ran("retention", "--trace", small, "--models", "gpt-oss-20b"); code != 0 || !strings.Contains(out, "dense") || !strings.Contains(out, "engine") {
		t.Errorf("exit code %d: %s", code, out)
	}
	for _, test := range []struct {
		args []string
		code int
	}{{nil, exitUsage}, {[]string{"--trace", small, "--models", "x"}, exitUsage}, {[]string{"--trace", "no"}, exitFailed}, {[]string{"--trace", small, "x"}, exitUsage}} {
		if code, _, errOut := ran(append([]string{"retention"}, test.args...)...); code != test.code || errOut == "" {
			t.Errorf("%q: exit code %d, %s", test.args, code, errOut)
		}
	}
}
