package compare

// Cell is what figures are not mixed over.
type Cell struct {
	Part   string `json:"part"`
	Model  string `json:"model"`
	Tokens int    `json:"tokens"`
}

// Pair is one comparison within a cell: every system once, one after the other.
type Pair struct {
	Cell
	Round  int `json:"round"`
	Prompt int `json:"prompt"`
	// OthersShare of a core went to other processes meanwhile.
	OthersShare float64 `json:"others_share"`
	// Seen is by system.
	Seen map[string]Seen `json:"seen"`
}

// Seen is what one system showed in a pair. Times are in milliseconds.
type Seen struct {
	// StoreWarmMs and EngineWarmMs are of PartWarm.
	StoreWarmMs  float64 `json:"store_warm_ms,omitempty"`
	EngineWarmMs float64 `json:"engine_warm_ms,omitempty"`
	// CachedTokens is what the store-warm request had not to compute.
	CachedTokens int `json:"cached_tokens,omitempty"`
	// TTFTMs has one time in PartCold and one an arrival in PartOverlap.
	TTFTMs []float64 `json:"ttft_ms,omitempty"`
	// GapMs are times between tokens of the request that decoded, in PartOverlap.
	GapMs []float64 `json:"gap_ms,omitempty"`
	// CPUSeconds is what the system used for PartOverlap's round, up to being quiet.
	CPUSeconds float64 `json:"cpu_seconds,omitempty"`
	// Wrong says what was wrong with an output.
	Wrong string `json:"wrong,omitempty"`
}

// overheadMs is what bringing the prompt from the store added.
func (s Seen) overheadMs() float64 { return s.StoreWarmMs - s.EngineWarmMs }
