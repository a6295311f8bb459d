package cache

import "github.com/mooncake-sidecar/sidecar/bench/trace"

// Result is what a replay found.
type Result struct {
	Policy string `json:"policy"`
	// Order is empty for MIN, which has none.
	Order    Order `json:"order,omitempty"`
	Capacity int   `json:"capacity"`
	Requests int   `json:"requests"`
	// Blocks were asked for and HitBlocks found: the leading ones of each request.
	Blocks    int `json:"blocks"`
	HitBlocks int `json:"hit_blocks"`
	// ResidentBlocks also counts those behind a missing one.
	ResidentBlocks int   `json:"resident_blocks"`
	Tokens         int64 `json:"tokens"`
	HitTokens      int64 `json:"hit_tokens"`
	// FullHits are requests all of whose blocks were found.
	FullHits int `json:"full_hits"`
	// Ratios of the sums above.
	BlockHitRatio float64 `json:"block_hit_ratio"`
	TokenHitRatio float64 `json:"token_hit_ratio"`
}

// count adds a request of which the first hits blocks were found.
func (r *Result) count(blocks, hits, resident int, tokens int64) {
	r.Requests++
	r.Blocks += blocks
	r.HitBlocks += hits
	r.ResidentBlocks += resident
	r.Tokens += tokens
	if hits == blocks {
		r.HitTokens += tokens
		r.FullHits++
	} else {
		r.HitTokens += int64(hits) * trace.BlockTokens
	}
}

func (r *Result) finish() {
	if r.Blocks > 0 {
		r.BlockHitRatio = float64(r.HitBlocks) / float64(r.Blocks)
		r.TokenHitRatio = float64(r.HitTokens) / float64(r.Tokens)
	}
}
