package cache

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// microTrace reads the trace of 40 requests on which all policies and orders
// differ, and what is expected of it.
func microTrace(t *testing.T) (tr *Trace, capacity int, hits map[string]int) {
	t.Helper()
	text, err := os.ReadFile("testdata/micro_expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var expected struct {
		Capacity  int            `json:"capacity"`
		Infinite  int            `json:"infinite_hit_blocks"`
		BlockRefs int            `json:"block_refs"`
		HitBlocks map[string]int `json:"hit_blocks"`
	}
	if err := json.Unmarshal(text, &expected); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("testdata/micro.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if tr, err = Read(f, "micro.jsonl"); err != nil {
		t.Fatal(err)
	}
	if tr.Blocks() != expected.BlockRefs || len(expected.HitBlocks) != 9 {
		t.Fatalf("%d blocks, %d results; want %d, 9", tr.Blocks(), len(expected.HitBlocks), expected.BlockRefs)
	}
	return tr, expected.Capacity, expected.HitBlocks
}

func TestMicro(t *testing.T) {
	tr, capacity, want := microTrace(t)
	seen := map[int]string{}
	for key, hits := range want {
		got, err := replayNamed(t.Context(), tr, key, capacity)
		if err != nil {
			t.Fatal(err)
		}
		if got.HitBlocks != hits {
			t.Errorf("%s: %d blocks hit, want %d", key, got.HitBlocks, hits)
		}
		seen[got.HitBlocks] = key
	}
	if len(seen) != len(want) {
		t.Errorf("the trace does not tell the replays apart: %v", seen)
	}
}

// TestReplayArithmetic: a case that is worked out by hand.
func TestReplayArithmetic(t *testing.T) {
	tr, err := Read(strings.NewReader(`{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[7,8]}
{"timestamp":0,"input_length":700,"output_length":1,"hash_ids":[7,9]}
{"timestamp":5,"input_length":600,"output_length":1,"hash_ids":[7,8]}
`), "t")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Replay(t.Context(), tr, evict.NewLRU(3), 3, Reverse, nil)
	want := Result{
		Policy: "lru", Order: Reverse, Capacity: 3, Requests: 3, Blocks: 6, HitBlocks: 3, ResidentBlocks: 3,
		Tokens: 1900, HitTokens: 512 + 600, FullHits: 1, BlockHitRatio: 0.5, TokenHitRatio: 1112. / 1900,
	}
	if err != nil || got != want {
		t.Errorf("Replay() = %+v, %v; want %+v", got, err, want)
	}
}

func TestReadContradiction(t *testing.T) {
	_, err := Read(strings.NewReader(`{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[7,8]}
{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[9,8]}
`), "t.jsonl")
	if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "t.jsonl:2") || !strings.Contains(err.Error(), "hash_ids") {
		t.Errorf("an id behind two different ones: %v", err)
	}
}

func TestArguments(t *testing.T) {
	tr, _, _ := microTrace(t)
	if _, err := Replay(t.Context(), tr, evict.NewLRU(1), 0, Reverse, nil); !errors.Is(err, ErrArgument) {
		t.Errorf("capacity 0: %v", err)
	}
	if _, err := Replay(t.Context(), tr, evict.NewLRU(1), 1, "up", nil); !errors.Is(err, ErrArgument) {
		t.Errorf("order up: %v", err)
	}
	if _, err := Best(t.Context(), tr, 0, nil); !errors.Is(err, ErrArgument) {
		t.Errorf("MIN of capacity 0: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Replay(over, tr, evict.NewLRU(1), 1, Reverse, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a replay that was cancelled: %v", err)
	}
}
