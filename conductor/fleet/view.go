package fleet

import (
	"cmp"
	"slices"
	"time"
)

// View is an engine as operators and metrics see it.
type View struct {
	Name     string  `json:"name"`
	URL      string  `json:"url"`
	Role     Role    `json:"role"`
	InUse    bool    `json:"in_use"`
	Up       bool    `json:"up"`
	Draining bool    `json:"draining"`
	Since    float64 `json:"since_seconds"`
	// Error is of the last poll that failed since the engine was well.
	Error  string     `json:"error,omitempty"`
	Models []Model    `json:"models"`
	Ranks  []RankView `json:"ranks"`
	Counts Counts     `json:"counts"`
}

// RankView is a rank of it. Ours are the requests that went through here.
type RankView struct {
	Rank           int     `json:"rank"`
	OurPrompts     int     `json:"our_prompts"`
	OurRequests    int     `json:"our_requests"`
	OtherPrompts   int     `json:"other_prompts"`
	OtherSequences int     `json:"other_sequences"`
	ContextTokens  int64   `json:"context_tokens"`
	QueueSeconds   float64 `json:"queue_seconds"`
	KVUsage        float64 `json:"kv_usage"`
	// What the engine counted of its own prefix cache and of the store behind it, in tokens.
	QueryTokens      float64 `json:"query_tokens"`
	HitTokens        float64 `json:"hit_tokens"`
	StoreQueryTokens float64 `json:"store_query_tokens"`
	StoreHitTokens   float64 `json:"store_hit_tokens"`
	PromptTokens     float64 `json:"prompt_tokens"`
	GeneratedTokens  float64 `json:"generated_tokens"`
	// PrefillSlowness and StepSlowness are by what factor it is slower than the models.
	PrefillSlowness float64 `json:"prefill_slowness"`
	StepSlowness    float64 `json:"step_slowness"`
}

// Views returns all engines, in the fleet's order.
func (f *Fleet) Views() []View {
	now := time.Now()
	views := make([]View, 0, len(f.engines))
	for _, e := range f.engines {
		e.mu.Lock()
		v := View{
			Name: e.config.Name, URL: e.config.URL, Role: e.config.Role, InUse: e.usableLocked(), Up: e.health.up, Draining: e.draining,
			Since: now.Sub(e.health.since).Seconds(), Models: slices.Clone(e.models), Counts: e.counts,
		}
		if e.health.err != nil {
			v.Error = e.health.err.Error()
		}
		for i := range e.ranks {
			r := &e.ranks[i]
			d := r.decoder()
			v.Ranks = append(v.Ranks, RankView{
				Rank: i, OurPrompts: r.prompts, OurRequests: len(r.flights), OtherPrompts: r.otherPrompts, OtherSequences: r.otherSequences,
				ContextTokens: d.ContextTokens, QueueSeconds: r.queue(now).Seconds(), KVUsage: r.polled.KVUsage,
				QueryTokens: r.polled.QueryTokens, HitTokens: r.polled.HitTokens,
				StoreQueryTokens: r.polled.StoreQueryTokens, StoreHitTokens: r.polled.StoreHitTokens,
				PromptTokens: r.polled.PromptTokens, GeneratedTokens: r.polled.GeneratedTokens,
				PrefillSlowness: r.prefills.value(), StepSlowness: r.steps.value(),
			})
		}
		e.mu.Unlock()
		views = append(views, v)
	}
	return views
}

// Models returns what engines in use serve, each once, by name.
func (f *Fleet) Models() []Model {
	var all []Model
	for _, e := range f.engines {
		e.mu.Lock()
		if e.usableLocked() {
			all = append(all, e.models...)
		}
		e.mu.Unlock()
	}
	slices.SortStableFunc(all, func(a, b Model) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b Model) bool { return a.ID == b.ID })
}

// Model returns a model that an engine serves, by its name.
func (f *Fleet) Model(id string) (Model, bool) {
	for _, e := range f.engines {
		e.mu.Lock()
		i := slices.IndexFunc(e.models, func(m Model) bool { return m.ID == id })
		var found Model
		if i >= 0 {
			found = e.models[i]
		}
		e.mu.Unlock()
		if i >= 0 {
			return found, true
		}
	}
	return Model{}, false
}
