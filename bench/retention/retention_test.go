package retention_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/retention"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// gptOSS is gpt-oss-20b on one rank: 12 layers with a window of 128 tokens and 12
// without, 8 KV heads of 64 in bfloat16.
func gptOSS(retention int) coordinator.Config {
	const bytes = 12 * 2 * 8 * 64 * 2 * 16
	return coordinator.Config{
		Groups: []kv.GroupSpec{
			{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 128, ShardBytes: bytes, Shards: 1},
			{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: bytes, Shards: 1},
		},
		HashBlockTokens: 16, SchedulerBlockTokens: 16, StoreRetention: retention,
	}
}

// gemma is gemma-3-27b on one rank: 62 layers of 16 KV heads of 128, five in six
// with a window of 1024 tokens. vLLM makes six window groups of ten layers' size;
// they hit and store as one, so that one of six times the bytes stands for them.
func gemma(retention int) coordinator.Config {
	const bytes = 10 * 2 * 16 * 128 * 2 * 16
	return coordinator.Config{
		Groups: []kv.GroupSpec{
			{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 1024, ShardBytes: 6 * bytes, Shards: 1},
			{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: bytes, Shards: 1},
		},
		HashBlockTokens: 16, SchedulerBlockTokens: 16, StoreRetention: retention,
	}
}

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
		got, err := retention.Replay(strings.NewReader(small), gptOSS(test.retention))
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

// TestTraces logs the measure over real traces, where MOONCAKE_SIDECAR_TRACES
// names their folder.
func TestTraces(t *testing.T) {
	folder := os.Getenv("MOONCAKE_SIDECAR_TRACES")
	if folder == "" {
		t.Skip("MOONCAKE_SIDECAR_TRACES names no folder")
	}
	for model, config := range map[string]func(int) coordinator.Config{"gpt-oss-20b": gptOSS, "gemma-3-27b": gemma} {
		for _, interval := range []int{coordinator.RetentionAsEngine, 8192, 2048, 512, coordinator.RetentionDense} {
			trace, err := os.Open(filepath.Join(folder, "conversation_trace.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := retention.Replay(trace, config(interval))
			trace.Close()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s, retention %5d: %d requests, hit %.4f of the tokens, %.1f GiB stored", model, interval, got.Requests,
				float64(got.HitTokens)/float64(got.Tokens), float64(got.Bytes)/(1<<30))
		}
	}
}
