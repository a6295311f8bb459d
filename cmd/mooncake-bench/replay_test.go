package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/replay/standin"
)

// replayed runs the command against a stand-in.
func replayed(t *testing.T, s *standin.Server, in string, args ...string) (code int, out, errOut string) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	var o, e bytes.Buffer
	code = run(append([]string{"mooncake-bench", "replay", "--url", server.URL}, args...), strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

func standIn() *standin.Server {
	return &standin.Server{BlockTokens: 16, Vocabulary: 4096, MaxTokens: 100_000}
}

func TestReplay(t *testing.T) {
	dir := t.TempDir()
	csv, html := filepath.Join(dir, "new", "r.csv"), filepath.Join(dir, "r.html")
	s := standIn()
	args := []string{"--trace", microTrace, "--scale", "1/16", "--closed-loop", "--require-cached", "--json", "--csv", csv, "--html", html}
	code, out, errOut := replayed(t, s, "", args...)
	if code != 0 || !strings.Contains(errOut, "tiny: blocks of 16 tokens, prompts of tokens 256 to 4095") {
		t.Fatalf("exit code %d: %s\n%s", code, errOut, out)
	}
	type found struct {
		Setup struct {
			Model string `json:"model"`
		} `json:"setup"`
		Must    int `json:"must_be_cached_in_order"`
		Summary struct {
			Requests, Answered int
			Cached             struct {
				Tokens, Must, May int
				AsExpected        int `json:"as_expected"`
				TooMany           int `json:"too_many"`
			}
		}
		Versus struct{ Pairs int }
	}
	var first found
	if err := json.Unmarshal([]byte(out), &first); err != nil {
		t.Fatal(err)
	}
	sum := first.Summary
	if sum.Requests != sum.Answered || sum.Answered == 0 || sum.Cached.AsExpected != sum.Answered || sum.Cached.Tokens != first.Must || sum.Cached.Must != first.Must || sum.Cached.May != first.Must || first.Must == 0 || first.Setup.Model != "tiny" {
		t.Errorf("%+v", first)
	}
	if page, err := os.ReadFile(html); err != nil || !bytes.Contains(page, []byte("Replay of micro.jsonl")) {
		t.Errorf("the page: %v", err)
	}
	// Again: the server is warm, which the trace does not account for.
	code, out, _ = replayed(t, s, "", append(args, "--baseline", csv)...)
	var second found
	if err := json.Unmarshal([]byte(out), &second); err != nil || code != exitIncomplete || second.Summary.Cached.TooMany == 0 || second.Versus.Pairs != sum.Answered {
		t.Errorf("a warm server: exit code %d, %v, %+v", code, err, second)
	}
	// Another seed's tokens are new, and so is a server that was reset.
	for _, more := range []string{"--seed=2", "--reset"} {
		if code, out, _ := replayed(t, s, "", append(args, more)...); code != 0 {
			t.Errorf("%s: exit code %d\n%s", more, code, out)
		}
	}
}

func TestReplayOpenLoop(t *testing.T) {
	line := `{"timestamp": %d, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}` + "\n"
	in := fmt.Sprintf(line, 0) + fmt.Sprintf(line, 10) + fmt.Sprintf(line, 10)
	code, out, errOut := replayed(t, standIn(), in, "--trace", "-", "--speed", "2", "--model", "tiny", "--block", "16", "--vocabulary", "4096")
	if code != 0 || !strings.Contains(out, "3 of 3 requests answered") || !strings.Contains(out, "3 of them had as many as expected") {
		t.Errorf("exit code %d: %s\n%s", code, errOut, out)
	}
}

func TestReplayOfABadTrace(t *testing.T) {
	good := `{"timestamp": 10, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}`
	in := strings.Join([]string{good, good[:30], strings.Replace(good, "10,", "9,", 1), strings.Replace(good, "[1, 2]", "[1]", 1), strings.Replace(good, "{", `{"type": "x", `, 1), good}, "\n")
	s := standIn()
	s.Fault = func(place int) standin.Fault {
		if place == 1 {
			return standin.Cut
		}
		return standin.Fine
	}
	code, out, errOut := replayed(t, s, in, "--trace", "-", "--closed-loop")
	if code != exitIncomplete || !strings.Contains(errOut, "the report says what") {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	for _, want := range []string{
		"2 of 3 requests answered", "trace: truncated line: 1\n  standard input:2: ", "trace: decreasing timestamp: 1\n  standard input:3: ",
		"trace: hash_ids do not fit: 1\n  standard input:4: ", "trace: unknown field: 1\n  standard input:5: ", "failed: cut off: 1\n  line 5: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestReplayRefuses(t *testing.T) {
	for _, test := range []struct {
		name, in string
		args     string
		code     int
		want     string
	}{
		{"no trace", "", "", exitUsage, "trace"},
		{"scale", "", "--trace - --scale 1/3", exitUsage, "--scale"},
		{"speed", "", "--trace - --speed 0", exitUsage, "speed"},
		{"speed NaN", "", "--trace - --speed NaN", exitUsage, "speed"},
		{"at once", "", "--trace - --at-once 0", exitUsage, "at once"},
		{"limit", "", "--trace - --limit=-1", exitUsage, "--limit"},
		{"url", "", "--trace - --url localhost", exitUsage, "--url"},
		{"argument", "", "--trace - more", exitUsage, "more"},
		{"empty", "", "--trace -", exitFailed, "empty"},
		{"no request", "x\ny", "--trace -", exitFailed, "2 lines, the first: standard input:1:"},
		{"no file", "", "--trace /nowhere.jsonl", exitFailed, "/nowhere.jsonl"},
		{"no baseline", "", "--trace " + microTrace + " --baseline /nowhere.csv", exitFailed, "/nowhere.csv"},
		{"bad baseline", "", "--trace " + microTrace + " --baseline main.go", exitFailed, "main.go"},
		{"no server", "", "--trace " + microTrace + " --url http://127.0.0.1:1", exitFailed, "asking for models"},
		{"no such model", "", "--trace " + microTrace + " --model x", exitFailed, "vocabulary"},
		{"block", "", "--trace " + microTrace + " --scale 1/64", exitFailed, "no multiple of the engine's block of 16; with 16/512"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, _, errOut := replayed(t, standIn(), test.in, strings.Fields(test.args)...)
			if code != test.code || !strings.Contains(errOut, test.want) {
				t.Errorf("exit code %d, %q; want %d, %q", code, errOut, test.code, test.want)
			}
		})
	}
}
