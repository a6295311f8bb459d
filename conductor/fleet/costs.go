package fleet

import (
	"math"
	"sync"
	"time"
)

// Costs are the speeds that were learned, of all engines alike; what an engine is
// slower by is in its facts. It implements scheduler.Costs.
type Costs struct {
	mu struct {
		sync.Mutex
		prefill, step *fit
	}
}

// The units that features are counted in: thousands of tokens, millions of pairs of
// them. A step's context is in millions of tokens.
const (
	tokenUnit   = 1e3
	pairUnit    = 1e6
	contextUnit = 1e6
)

// The models before anything was observed, in seconds a unit: 20,000 tokens a second,
// loads of a million tokens a second, and steps of 10 ms.
var (
	prefillPrior = vector{5e-3, 50e-3, 1e-4, 1e-3}
	stepPrior    = vector{10e-3, 0.2e-3, 30e-3, 0}
)

// leastTokenSeconds is what computing a token takes at least: no engine does half a
// million a second. While prompts are short that is all that speaks for a cache.
const leastTokenSeconds = 2e-6

// boundPrefill sees that a token that is computed takes some time, and one that is
// loaded no more.
func boundPrefill(v *vector) {
	v[1] = max(v[1], leastTokenSeconds*tokenUnit)
	v[3] = min(v[3], v[1]/2)
}

// NewCosts has learned nothing yet.
func NewCosts() *Costs {
	c := &Costs{}
	c.mu.prefill, c.mu.step = newFit(prefillPrior, boundPrefill), newFit(stepPrior, nil)
	return c
}

// prefillFeatures of a prompt of which so many tokens are cached.
func prefillFeatures(tokens, cached int) vector {
	n, p := float64(tokens), float64(min(cached, tokens))
	return vector{1, (n - p) / tokenUnit, (n*n - p*p) / 2 / pairUnit, p / tokenUnit}
}

func stepFeatures(sequences float64, contextTokens float64) vector {
	return vector{1, sequences, contextTokens / contextUnit, 0}
}

// longest that is told, so that sums of durations stay durations.
const longest = 24 * time.Hour

func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	return time.Duration(min(s, longest.Seconds()) * float64(time.Second))
}

// Prefill implements scheduler.Costs.
func (c *Costs) Prefill(tokens, cachedTokens int) time.Duration {
	x := prefillFeatures(tokens, cachedTokens)
	c.mu.Lock()
	defer c.mu.Unlock()
	return seconds(x.dot(&c.mu.prefill.coefficients))
}

// Work implements scheduler.Costs: the prefill without the load of what is cached.
func (c *Costs) Work(tokens, cachedTokens int) time.Duration {
	x := prefillFeatures(tokens, cachedTokens)
	x[3] = 0
	c.mu.Lock()
	defer c.mu.Unlock()
	return seconds(x.dot(&c.mu.prefill.coefficients))
}

// Transfer implements scheduler.Costs. What another engine stored comes as what the
// engine itself has stored does.
func (c *Costs) Transfer(tokens int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return seconds(c.mu.prefill.coefficients[3] * float64(tokens) / tokenUnit)
}

// Iteration implements scheduler.Costs.
func (c *Costs) Iteration(sequences int, contextTokens int64) time.Duration {
	x := stepFeatures(float64(sequences), float64(contextTokens))
	c.mu.Lock()
	defer c.mu.Unlock()
	return seconds(x.dot(&c.mu.step.coefficients))
}

// observePrefill takes account of a busy period and returns by what factor it was
// longer than expected.
func (c *Costs) observePrefill(x *vector, period time.Duration) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return observe(c.mu.prefill, x, period, 1)
}

// observeStep takes account of a step, of which each of its sequences tells.
func (c *Costs) observeStep(x *vector, step time.Duration) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return observe(c.mu.step, x, step, 1/max(x[1], 1))
}

func observe(f *fit, x *vector, took time.Duration, share float64) float64 {
	f.observe(x, took.Seconds(), share)
	return max(took.Seconds(), shortest) / max(x.dot(&f.coefficients), shortest)
}

// Learned are the models, in seconds.
type Learned struct {
	// PromptSeconds is what each prompt costs, TokenSeconds each token that is computed,
	// PairSeconds the attention between two, CachedTokenSeconds each that is loaded.
	PromptSeconds      float64 `json:"prompt_seconds"`
	TokenSeconds       float64 `json:"token_seconds"`
	PairSeconds        float64 `json:"pair_seconds"`
	CachedTokenSeconds float64 `json:"cached_token_seconds"`
	Prefills           int     `json:"prefills_observed"`
	// A step costs StepSeconds, and more by sequence and by token of context.
	StepSeconds         float64 `json:"step_seconds"`
	SequenceSeconds     float64 `json:"sequence_seconds"`
	ContextTokenSeconds float64 `json:"context_token_seconds"`
	Steps               int     `json:"steps_observed"`
}

// Learned returns the models as they are now.
func (c *Costs) Learned() Learned {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, s := &c.mu.prefill.coefficients, &c.mu.step.coefficients
	return Learned{
		PromptSeconds: p[0], TokenSeconds: p[1] / tokenUnit, PairSeconds: p[2] / 2 / pairUnit, CachedTokenSeconds: p[3] / tokenUnit, Prefills: c.mu.prefill.seen,
		StepSeconds: s[0], SequenceSeconds: s[1], ContextTokenSeconds: s[2] / contextUnit, Steps: c.mu.step.seen,
	}
}

// factor is by how much an engine is slower than the models, a moving mean of
// logarithms; the zero value is 1.
type factor float64

// A factor's bounds, and how fast it moves: by factorShare with what took fullTime, by
// less with what was shorter, for that tells more of the machine's moods than of the
// engine.
const (
	mostFactor  = 16
	factorShare = 0.1
	fullTime    = 100 * time.Millisecond
)

func (f *factor) observe(ratio float64, took time.Duration) {
	ratio = min(max(ratio, 1/float64(mostFactor)), mostFactor)
	share := factorShare * min(max(took.Seconds()/fullTime.Seconds(), 0), 1)
	*f += factor(share * (math.Log(ratio) - float64(*f)))
}

func (f factor) value() float64 { return math.Exp(float64(f)) }
