package api

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// serviceView is a service as /services shows it: the contract's fields, and how it
// does.
type serviceView struct {
	Endpoint       string
	ReplayEndpoint string
	Type           string
	ModelName      string
	LoraName       string
	TenantID       string
	InstanceID     string
	BlockSize      int
	DPRank         int
	AdditionalSalt string

	Topic       string       `json:"topic,omitempty" msgpack:"topic,omitempty"`
	HashProfile *profileView `json:"hash_profile,omitempty" msgpack:"hash_profile,omitempty"`
	State       string       `json:"state" msgpack:"state"`
	// CompleteSince is the sequence number from which on all is known.
	CompleteSince uint64 `json:"complete_since,omitempty" msgpack:"complete_since,omitempty"`
	Next          uint64 `json:"next_sequence" msgpack:"next_sequence"`
	// HeardMS is when the last message came, in milliseconds since 1970; 0 for never.
	HeardMS  int64    `json:"heard_ms" msgpack:"heard_ms"`
	Reason   string   `json:"reason,omitempty" msgpack:"reason,omitempty"`
	Hashing  string   `json:"hashing,omitempty" msgpack:"hashing,omitempty"`
	Warnings []string `json:"warnings,omitempty" msgpack:"warnings,omitempty"`
	// Static: it is in the configuration; Found: an engine of the configuration told of it.
	Static   bool   `json:"static,omitempty" msgpack:"static,omitempty"`
	Found    bool   `json:"found,omitempty" msgpack:"found,omitempty"`
	Batches  uint64 `json:"batches" msgpack:"batches"`
	Gaps     uint64 `json:"gaps" msgpack:"gaps"`
	Restarts uint64 `json:"restarts" msgpack:"restarts"`
	Rejected uint64 `json:"rejected" msgpack:"rejected"`
	Blocks   struct {
		Stored   uint64 `json:"stored" msgpack:"stored"`
		Removed  uint64 `json:"removed" msgpack:"removed"`
		Again    uint64 `json:"again" msgpack:"again"`
		Reported uint64 `json:"reported" msgpack:"reported"`
		Unplaced uint64 `json:"unplaced" msgpack:"unplaced"`
		Unknown  uint64 `json:"unknown" msgpack:"unknown"`
		Dropped  uint64 `json:"dropped" msgpack:"dropped"`
		Ignored  uint64 `json:"ignored" msgpack:"ignored"`
		Clears   uint64 `json:"clears" msgpack:"clears"`
	} `json:"blocks" msgpack:"blocks"`
}

type profileView struct {
	Algorithm string `json:"algorithm" msgpack:"algorithm"`
	Seed      string `json:"python_hash_seed" msgpack:"python_hash_seed"`
}

func viewOf(s *contract.Status) serviceView {
	v := serviceView{
		Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, Type: s.Type, ModelName: s.Model, LoraName: s.LoRA, TenantID: s.Tenant, InstanceID: s.Instance,
		BlockSize: s.BlockTokens, DPRank: s.Rank, AdditionalSalt: s.AdditionalSalt, Topic: s.Topic,
		State: s.State.String(), CompleteSince: s.Since, Next: s.Next, HeardMS: milliseconds(s.Heard), Reason: s.Reason, Hashing: s.Hashing, Warnings: s.Warnings,
		Static: s.Ways&contract.Configured != 0, Found: s.Ways&contract.Found != 0, Batches: s.Batches, Gaps: s.Gaps, Restarts: s.Restarts, Rejected: s.Rejected,
	}
	if s.Hash != (contract.HashProfile{}) {
		v.HashProfile = &profileView{s.Hash.Algorithm, s.Hash.Seed}
	}
	b := &s.Blocks
	v.Blocks.Stored, v.Blocks.Removed, v.Blocks.Again, v.Blocks.Reported = b.Stored, b.Removed, b.Again, b.Reported
	v.Blocks.Unplaced, v.Blocks.Unknown, v.Blocks.Dropped, v.Blocks.Ignored, v.Blocks.Clears = b.Unplaced, b.Unknown, b.Dropped, b.Ignored, b.Clears
	return v
}

func milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// services answers /services.
func (s *Server) services(w http.ResponseWriter, r *http.Request) error {
	all := s.cfg.Index.Services()
	views := make([]serviceView, len(all))
	for i := range all {
		views[i] = viewOf(&all[i])
	}
	return s.reply(w, r, &struct {
		Count    int           `json:"count" msgpack:"count"`
		Services []serviceView `json:"services" msgpack:"services"`
	}{len(views), views})
}

// Bounds of the hashes that /global_view shows.
const (
	defaultViewHashes = 1000
	maxViewHashes     = 100_000
)

type contextView struct {
	ModelName      string `json:"model_name" msgpack:"model_name"`
	LoraName       string `json:"lora_name" msgpack:"lora_name"`
	BlockSize      int    `json:"block_size" msgpack:"block_size"`
	AdditionalSalt string `json:"additional_salt" msgpack:"additional_salt"`
	TenantID       string `json:"tenant_id" msgpack:"tenant_id"`
	InstanceID     string `json:"instance_id" msgpack:"instance_id"`
}

// view answers /global_view; ?limit= is how many hashes are shown.
func (s *Server) view(w http.ResponseWriter, r *http.Request) error {
	limit := defaultViewHashes
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 || limit > maxViewHashes {
			return &contract.FieldError{Field: "limit", Reason: reasonRange, Text: fmt.Sprintf("%q; want 0 to %d", shorten(text), maxViewHashes)}
		}
	}
	view := s.cfg.Index.View(limit)
	contexts := make([]contextView, len(view.Contexts))
	for i, c := range view.Contexts {
		contexts[i] = contextView{c.Model, c.LoRA, c.BlockTokens, c.AdditionalSalt, c.Tenant, c.Instance}
	}
	hashes := make([]map[uint64]uint64, len(view.Hashes))
	for i, pair := range view.Hashes {
		hashes[i] = map[uint64]uint64{pair.Engine: pair.Index}
	}
	return s.reply(w, r, &struct {
		Count     int                 `json:"context_count" msgpack:"context_count"`
		Contexts  []contextView       `json:"model_contexts" msgpack:"model_contexts"`
		Hashes    []map[uint64]uint64 `json:"hashmap" msgpack:"hashmap"`
		Truncated bool                `json:"truncated,omitempty" msgpack:"truncated,omitempty"`
	}{len(contexts), contexts, hashes, view.Truncated})
}

// Stats is what /stats says.
type Stats struct {
	Version string `json:"version,omitempty" msgpack:"version,omitempty"`
	Ready   bool   `json:"ready" msgpack:"ready"`
	// Reasons why it is not.
	Reasons       []string       `json:"reasons,omitempty" msgpack:"reasons,omitempty"`
	Services      int            `json:"services" msgpack:"services"`
	States        map[string]int `json:"states" msgpack:"states"`
	Blocks        uint64         `json:"blocks" msgpack:"blocks"`
	Bytes         int64          `json:"bytes" msgpack:"bytes"`
	MaxBytes      int64          `json:"max_bytes" msgpack:"max_bytes"`
	Queries       uint64         `json:"queries" msgpack:"queries"`
	TokensAsked   uint64         `json:"tokens_asked" msgpack:"tokens_asked"`
	TokensMatched uint64         `json:"tokens_matched" msgpack:"tokens_matched"`
}

// StatsOf puts together what an index says of itself.
func StatsOf(index Indexer) Stats {
	stats, reasons := index.Stats(), index.Unready()
	out := Stats{
		Ready: len(reasons) == 0, Reasons: reasons, States: map[string]int{}, Blocks: stats.Blocks, Bytes: stats.Bytes, MaxBytes: stats.MaxBytes,
		Queries: stats.Queries, TokensAsked: stats.TokensAsked, TokensMatched: stats.TokensMatched,
	}
	services := index.Services()
	out.Services = len(services)
	for i := range services {
		out.States[services[i].State.String()]++
	}
	return out
}

// stats answers /stats.
func (s *Server) stats(w http.ResponseWriter, r *http.Request) error {
	stats := StatsOf(s.cfg.Index)
	stats.Version = s.cfg.Version
	return s.reply(w, r, &stats)
}

// snapshotPatience is how long a snapshot may take to be sent.
const snapshotPatience = 10 * time.Minute

// snapshot answers /snapshot: what another conductor begins with. One is sent at a time.
func (s *Server) snapshot(w http.ResponseWriter, r *http.Request) error {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(snapshotPatience)) // without, the server's holds
	w.Header().Set("Content-Type", "application/octet-stream")
	if r.Method == http.MethodHead {
		return nil
	}
	if !s.snapshots.CompareAndSwap(false, true) {
		return errBusy
	}
	defer s.snapshots.Store(false)
	out := &sent{ResponseWriter: w}
	err := s.cfg.Index.Snapshot(r.Context(), out)
	if err != nil && out.n > 0 {
		// The answer has begun: that it is no whole one shows when the connection breaks.
		s.cfg.Log.Warn("a snapshot was not sent whole", "error", err)
		panic(http.ErrAbortHandler)
	}
	return err
}

// sent counts what was written of an answer.
type sent struct {
	http.ResponseWriter
	n int64
}

// Write implements io.Writer.
func (w *sent) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // or the answer would begin
	}
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}
