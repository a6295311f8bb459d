package router

import (
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// Decision is where a request was sent, and why; times are in seconds.
type Decision struct {
	ID      uint64             `json:"id"`
	At      time.Time          `json:"at"`
	Path    string             `json:"path,omitempty"`
	Model   string             `json:"model"`
	Tenant  string             `json:"tenant"`
	Policy  scheduler.Strategy `json:"policy"`
	Tokens  int                `json:"tokens"`
	Known   bool               `json:"tokens_known"`
	Unknown string             `json:"tokens_unknown_because,omitempty"`
	TTFT    float64            `json:"ttft_objective,omitempty"`
	TBT     float64            `json:"tbt_objective,omitempty"`

	// Prefill and Decode are engines; they are the same one where an engine does both.
	Prefill     string `json:"prefill,omitempty"`
	PrefillRank int    `json:"prefill_rank"`
	Decode      string `json:"decode,omitempty"`
	DecodeRank  int    `json:"decode_rank"`
	// CachedTokens are expected not to be computed.
	CachedTokens int     `json:"cached_tokens"`
	Expected     float64 `json:"expected_ttft"`
	ExpectedTBT  float64 `json:"expected_tbt,omitempty"`
	// Refused is why it was, empty if it was not.
	Refused string `json:"refused,omitempty"`
	// Note is what is worth knowing besides.
	Note string `json:"note,omitempty"`
	// Candidates are all engines that were looked at.
	Candidates []Candidate `json:"candidates"`

	// Outcome: what became of it. Attempts that failed come before the one that did not.
	Attempts []Attempt `json:"attempts,omitempty"`
	Status   int       `json:"status,omitempty"`
	TookTTFT float64   `json:"ttft,omitempty"`
	Took     float64   `json:"took,omitempty"`
	Failed   string    `json:"failed,omitempty"`
}

// Candidate is what an engine would have cost.
type Candidate struct {
	Engine string `json:"engine"`
	Rank   int    `json:"rank"`
	// LocalTokens are those that the engine has itself, StoredTokens those that others can
	// load, CachedTokens those that would not be computed, Source from where the rest of
	// them is.
	LocalTokens  int    `json:"local_tokens"`
	StoredTokens int    `json:"stored_tokens"`
	CachedTokens int    `json:"cached_tokens"`
	Source       string `json:"source,omitempty"`
	// Index is how complete what is known of it is.
	Index     string  `json:"index,omitempty"`
	Transfer  float64 `json:"transfer"`
	Queue     float64 `json:"queue"`
	Prefill   float64 `json:"prefill"`
	TTFT      float64 `json:"ttft"`
	Objective float64 `json:"objective"`
	TBT       float64 `json:"tbt"`
	Sequences int     `json:"sequences"`
	// Busy: its tokens would come more slowly than the request's objective.
	Busy   bool `json:"busy,omitempty"`
	Chosen bool `json:"chosen,omitempty"`
}

// Attempt is one that failed.
type Attempt struct {
	Engine string `json:"engine"`
	Error  string `json:"error"`
}

// decisions are the latest. It is safe for concurrent use.
type decisions struct {
	mu   sync.Mutex
	ring []*Decision
	made uint64
}

// add takes a decision in and gives it its number, from 1.
func (d *decisions) add(made *Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made++
	made.ID = d.made
	d.ring[d.made%uint64(len(d.ring))] = made
}

// change changes one that others may be reading.
func (d *decisions) change(made *Decision, how func(*Decision)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	how(made)
}

// latest returns copies of the latest decisions that want says yes to, the last first.
func (d *decisions) latest(limit int, want func(*Decision) bool) []Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []Decision{}
	for i := range min(d.made, uint64(len(d.ring))) {
		made := d.ring[(d.made-i)%uint64(len(d.ring))]
		if len(all) == limit {
			break
		}
		if want(made) {
			all = append(all, *made)
		}
	}
	return all
}

func (d *decisions) count() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.made
}
