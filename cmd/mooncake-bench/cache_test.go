package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const microTrace = "../../bench/cache/testdata/micro.jsonl"

func TestCache(t *testing.T) {
	var out, errOut bytes.Buffer
	code := run([]string{"mooncake-bench", "cache", "--trace", microTrace, "--policy", "lru,sieve,min", "--capacity", "12,infinite", "--json"}, nil, &out, &errOut)
	if code != 0 || errOut.Len() != 0 {
		t.Fatalf("exit code %d: %s", code, &errOut)
	}
	var hits []int
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var result map[string]any
		if err := json.Unmarshal([]byte(line), &result); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"blocks", "hit_blocks", "tokens", "hit_tokens", "full_hits", "block_hit_ratio", "token_hit_ratio"} {
			if _, there := result[key]; !there {
				t.Errorf("no %s in %s", key, line)
			}
		}
		hits = append(hits, int(result["hit_blocks"].(float64)))
	}
	if want := []int{59, 61, 72, 75, 75, 75}; len(hits) != 6 || [6]int(hits) != [6]int(want) {
		t.Errorf("hits %v, want %v", hits, want)
	}
}

func TestCacheTable(t *testing.T) {
	in, err := os.Open(microTrace)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out, errOut bytes.Buffer
	if code := run([]string{"mooncake-bench", "cache", "--trace", "-", "--order", "fwd", "--policy", "fifo", "--capacity", "12"}, in, &out, &errOut); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errOut)
	}
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 2 || !strings.Contains(lines[1], " 45 ") {
		t.Errorf("table:\n%s", &out)
	}
}

func TestCacheRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte(`{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		args string
		code int
		want string
	}{
		{"no capacity", "--trace x", exitUsage, "capacity"},
		{"capacity 0", "--trace x --capacity 0", exitUsage, "--capacity"},
		{"capacity -1", "--trace x --capacity=-1", exitUsage, "--capacity"},
		{"capacity 5k", "--trace x --capacity 5k", exitUsage, "5k"},
		{"capacity of nothing", "--trace x --capacity=", exitUsage, "at least one"},
		{"policy", "--trace x --capacity 1 --policy mru", exitUsage, "mru"},
		{"order", "--trace x --capacity 1 --order up", exitUsage, "up"},
		{"argument", "--trace x --capacity 1 more", exitUsage, "more"},
		{"no file", "--trace /nowhere.jsonl --capacity 1", exitFailed, "/nowhere.jsonl"},
		{"bad file", "--trace " + bad + " --capacity 1", exitFailed, "bad.jsonl:1: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := run(append([]string{"mooncake-bench", "cache"}, strings.Fields(test.args)...), strings.NewReader(""), &out, &errOut)
			if code != test.code || !strings.Contains(errOut.String(), test.want) {
				t.Errorf("exit code %d, %q; want %d, %q", code, &errOut, test.code, test.want)
			}
		})
	}
}
