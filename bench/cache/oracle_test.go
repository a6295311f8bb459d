package cache

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// tracesVar names the folder with the real traces; ../oracle/expected.json stands
// beside it. Once it is set, what lacks there is a failure.
const tracesVar = "MOONCAKE_SIDECAR_TRACES"

// counts are the integers of a replay.
type counts struct {
	HitBlocks      int   `json:"hit_blocks"`
	HitTokens      int64 `json:"hit_tokens"`
	ResidentBlocks int   `json:"resident_blocks"`
	Blocks         int   `json:"blocks"`
	Tokens         int64 `json:"tokens"`
	FullHits       int   `json:"full_hits"`
}

type oracleFile struct {
	Traces map[string]struct {
		File     string                       `json:"file"`
		Requests int                          `json:"requests"`
		Unique   int                          `json:"unique_blocks"`
		Infinite counts                       `json:"infinite"`
		Finite   map[string]map[string]counts `json:"finite"`
		Fig9     map[string]json.RawMessage   `json:"fig9"`
	} `json:"traces"`
}

// realTraces reads the traces and what is expected of them, or skips.
func realTraces(t *testing.T) (oracleFile, map[string]*Trace) {
	t.Helper()
	dir := os.Getenv(tracesVar)
	if dir == "" {
		t.Skipf("%s is not set: it names a folder with Mooncake's traces, with ../oracle/expected.json beside it", tracesVar)
	}
	text, err := os.ReadFile(filepath.Join(dir, "..", "oracle", "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var expected oracleFile
	if err := json.Unmarshal(text, &expected); err != nil {
		t.Fatal(err)
	}
	if len(expected.Traces) != 2 {
		t.Fatalf("expected.json has %d traces, want 2", len(expected.Traces))
	}
	traces := map[string]*Trace{}
	for name, x := range expected.Traces {
		f, err := os.Open(filepath.Join(dir, filepath.Base(x.File)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if traces[name], err = Read(f, x.File); err != nil {
			t.Fatal(err)
		}
	}
	return expected, traces
}

func (r *Result) counts() counts {
	return counts{r.HitBlocks, r.HitTokens, r.ResidentBlocks, r.Blocks, r.Tokens, r.FullHits}
}

// TestOracle: every integer of every replay in expected.json.
func TestOracle(t *testing.T) {
	expected, traces := realTraces(t)
	for name, x := range expected.Traces {
		tr := traces[name]
		if tr.Requests() != x.Requests || tr.Unique() != x.Unique {
			t.Errorf("%s: %d requests, %d blocks; want %d, %d", name, tr.Requests(), tr.Unique(), x.Requests, x.Unique)
		}
		n := 0
		for key, byCapacity := range x.Finite {
			for capacity, want := range byCapacity {
				blocks, err := strconv.Atoi(capacity)
				if err != nil {
					t.Fatal(err)
				}
				got, err := replayNamed(t.Context(), tr, key, blocks)
				if err != nil {
					t.Fatal(err)
				}
				if got.counts() != want {
					t.Errorf("%s %s at %d blocks: %+v, want %+v", name, key, blocks, got.counts(), want)
				}
				n++
			}
		}
		if n != 81 {
			t.Errorf("%s: %d replays compared, want 81", name, n)
		}
		for _, key := range []string{"LRU/rev", "FIFO/fwd", "LFU/rev", "SIEVE/fwd", "MIN"} {
			got, err := replayNamed(t.Context(), tr, key, tr.Unique())
			if err != nil {
				t.Fatal(err)
			}
			if got.counts() != x.Infinite {
				t.Errorf("%s %s without evictions: %+v, want %+v", name, key, got.counts(), x.Infinite)
			}
		}
	}
}

// replayNamed replays what the oracle calls MIN, or LRU/rev.
func replayNamed(ctx context.Context, tr *Trace, key string, capacity int) (Result, error) {
	if key == "MIN" {
		return Best(ctx, tr, capacity, nil)
	}
	name, order, ok := strings.Cut(key, "/")
	if !ok {
		return Result{}, errors.New("no replay " + key)
	}
	policy, err := evict.New(strings.ToLower(name), min(capacity, tr.Unique()))
	if err != nil {
		return Result{}, err
	}
	return Replay(ctx, tr, policy, capacity, Order(order), nil)
}
