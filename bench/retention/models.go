package retention

import (
	"errors"
	"io"
	"slices"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// GPTOSS is gpt-oss-20b on one rank: 12 layers with a window of 128 tokens and 12
// without, 8 KV heads of 64 in bfloat16.
func GPTOSS(interval int) coordinator.Config {
	const bytes = 12 * 2 * 8 * 64 * 2 * 16
	return coordinator.Config{
		Groups: []kv.GroupSpec{
			{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 128, ShardBytes: bytes, Shards: 1},
			{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: bytes, Shards: 1},
		},
		HashBlockTokens: 16, SchedulerBlockTokens: 16, StoreRetention: interval,
	}
}

// Gemma is gemma-3-27b on one rank: 62 layers of 16 KV heads of 128, five in six
// with a window of 1024 tokens. vLLM makes six window groups of ten layers' size;
// they hit and store as one, so that one of six times the bytes stands for them.
func Gemma(interval int) coordinator.Config {
	const bytes = 10 * 2 * 16 * 128 * 2 * 16
	return coordinator.Config{
		Groups: []kv.GroupSpec{
			{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 1024, ShardBytes: 6 * bytes, Shards: 1},
			{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: bytes, Shards: 1},
		},
		HashBlockTokens: 16, SchedulerBlockTokens: 16, StoreRetention: interval,
	}
}

// Row is a replay for a model with windows.
type Row struct {
	Model string `json:"model"`
	// Interval of tokens between which windows are stored: coordinator's words for the
	// engine's own, and for all.
	Interval int `json:"interval_tokens"`
	Requests int `json:"requests"`
	// HitShare of the tokens asked for.
	HitShare float64 `json:"hit_share"`
	Bytes    int64   `json:"stored_bytes"`
}

// Intervals that Sweep replays.
func Intervals() []int {
	return []int{coordinator.RetentionAsEngine, 8192, 2048, 512, coordinator.RetentionDense}
}

// model is one to replay for.
type model struct {
	name   string
	config func(interval int) coordinator.Config
}

func models() []model { return []model{{"gpt-oss-20b", GPTOSS}, {"gemma-3-27b", Gemma}} }

// Models are the names that Sweep takes.
func Models() []string {
	var names []string
	for _, m := range models() {
		names = append(names, m.name)
	}
	return names
}

// Sweep replays a trace for the named models and all intervals. open opens the trace
// anew; each gets the rows as they come.
func Sweep(names []string, open func() (io.ReadCloser, error), each func(Row) error) error {
	for _, m := range models() {
		if !slices.Contains(names, m.name) {
			continue
		}
		for _, interval := range Intervals() {
			trace, err := open()
			if err != nil {
				return err
			}
			got, err := Replay(trace, m.config(interval))
			trace.Close()
			if err != nil {
				return err
			}
			if got.Tokens == 0 {
				return errors.New("retention: no request in the trace")
			}
			if err := each(Row{m.name, interval, got.Requests, float64(got.HitTokens) / float64(got.Tokens), got.Bytes}); err != nil {
				return err
			}
		}
	}
	return nil
}
