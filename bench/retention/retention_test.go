package retention_test

import (
	"io"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/retention"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

const small = `{"input_length": 1536, "hash_ids": [1, 2, 3]}
{"input_length": 1500, "hash_ids": [1, 2, 4]}
{"input_length": 1536, "hash_ids": [1, 2, 3]}
`

// TestReplay: the second request shares two blocks, which the engine's default
// does not serve to a window.
func TestReplay(t *testing.T) {
	for _, test := range []struct {
		retention      int
		hit            int64
		window, chunks int64
	}{
		// Only the replay of the first request hits, below its last block.
		{coordinator.RetentionAsEngine, 1520, 8 + 8, 96 + 29},
		// A window before every 512 tokens, and one chunk below the replayed one.
		{512, 1024 + 1520, 24 + 1 + 8, 96 + 29},
		{coordinator.RetentionDense, 1024 + 1520, 96 + 29, 96 + 29},
	} {
		got, err := retention.Replay(strings.NewReader(small), retention.GPTOSS(test.retention))
		if err != nil {
			t.Fatal(err)
		}
		if got.Requests != 3 || got.Tokens != 4572 || got.HitTokens != test.hit ||
			got.Chunks[0] != test.window || got.Chunks[1] != test.chunks {
			t.Errorf("retention %d: %+v", test.retention, got)
		}
		if got.Bytes != (got.Chunks[0]+got.Chunks[1])*393216 {
			t.Errorf("retention %d: %d bytes", test.retention, got.Bytes)
		}
	}
}

func TestReplayRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		trace string
		hash  int
		want  string
	}{
		"no json":  {"{", 16, "request 0"},
		"length":   {`{"input_length": 513, "hash_ids": [1]}`, 16, "513 tokens in 1 blocks"},
		"negative": {`{"input_length": -1, "hash_ids": [1]}`, 16, "-1 tokens"},
		"hash":     {small, 48, "does not divide 512"},
		"config":   {small, 0, "hash_block_tokens"},
		"long":     {strings.Repeat("x", 2<<20), 16, "too long"},
	} {
		cfg := coordinator.Config{
			Groups:          []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: test.hash}},
			HashBlockTokens: test.hash, SchedulerBlockTokens: test.hash,
		}
		if _, err := retention.Replay(strings.NewReader(test.trace), cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestSweep: more is found where more is stored, and all models and intervals are
// replayed.
func TestSweep(t *testing.T) {
	open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(small)), nil }
	var rows []retention.Row
	if err := retention.Sweep(retention.Models(), open, func(r retention.Row) error { rows = append(rows, r); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := 2 * len(retention.Intervals()); len(rows) != want {
		t.Fatalf("%d rows, want %d", len(rows), want)
	}
	engine, dense := rows[0], rows[len(retention.Intervals())-1]
	if engine.Model != dense.Model || engine.Requests != 3 || engine.HitShare >= dense.HitShare || engine.Bytes >= dense.Bytes {
		t.Errorf("as the engine %+v, dense %+v", engine, dense)
	}
	if err := retention.Sweep(retention.Models(), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("")), nil }, nil); err == nil {
		t.Error("an empty trace was replayed")
	}
}
