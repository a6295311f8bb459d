package record

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
)

// SLO is what a request must keep to count for goodput.
type SLO struct {
	TTFT time.Duration
	// TBT bounds the mean of a request's longest tenth of gaps.
	TBT time.Duration
}

// Summary is what a replay comes to. Its JSON is the report's.
type Summary struct {
	// Requests that were sent, and of them answered in full.
	Requests int `json:"requests"`
	Answered int `json:"answered"`
	Failed   int `json:"failed"`
	// FailedBy kind.
	FailedBy []Count `json:"failed_by,omitempty"`
	// Seconds from the first request's due time to the last token.
	Seconds float64 `json:"seconds"`

	TTFT    Spread `json:"ttft"`
	TBT     Spread `json:"tbt"`
	TailTBT Spread `json:"tail_tbt"`
	Latency Spread `json:"latency"`
	// SendLag is how much later than due requests were sent.
	SendLag Spread `json:"send_lag"`

	RequestsPerS     float64 `json:"requests_per_s"`
	PromptTokens     int64   `json:"prompt_tokens"`
	OutputTokens     int64   `json:"output_tokens"`
	PromptTokensPerS float64 `json:"prompt_tokens_per_s"`
	OutputTokensPerS float64 `json:"output_tokens_per_s"`

	Goodput Goodput `json:"goodput"`
	Cached  Cached  `json:"cached"`
}

// Count of something named.
type Count struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// Goodput counts the answered requests that kept the objectives.
type Goodput struct {
	TTFTms float64 `json:"slo_ttft_ms"`
	TBTms  float64 `json:"slo_tbt_ms"`
	// KeptTTFT and KeptTBT are requests, Kept those that kept both.
	KeptTTFT int `json:"kept_ttft"`
	KeptTBT  int `json:"kept_tbt"`
	Kept     int `json:"kept"`
	// Share of all requests sent, failed ones included.
	Share        float64 `json:"share"`
	RequestsPerS float64 `json:"requests_per_s"`
}

// Cached compares cached tokens with what they must be, over answered requests
// whose cached tokens the server tells.
type Cached struct {
	Tokens int64 `json:"tokens"`
	Must   int64 `json:"must"`
	May    int64 `json:"may"`
	// InOrder is what the trace says of these requests, one at a time.
	InOrder int64 `json:"in_order"`
	// Share of the prompts' tokens.
	Share      float64 `json:"share"`
	AsExpected int     `json:"as_expected"`
	TooFew     int     `json:"too_few"`
	TooMany    int     `json:"too_many"`
	Untold     int     `json:"untold"`
}

// Recorder sums up outcomes. It belongs to one goroutine.
type Recorder struct {
	slo                               SLO
	ttft, tbt, tail, latency, sendLag *Times
	outcomes                          []Outcome
}

// NewRecorder has nothing yet.
func NewRecorder(slo SLO) *Recorder {
	return &Recorder{slo: slo, ttft: NewTimes(), tbt: NewTimes(), tail: NewTimes(), latency: NewTimes(), sendLag: NewTimes()}
}

// Add counts an outcome and its gaps. What a failed request got before it failed
// counts for first tokens and gaps, not for latency.
func (r *Recorder) Add(o *Outcome, gaps *Gaps) {
	r.sendLag.Add(o.Sent - o.Due)
	if o.First != Never {
		r.ttft.Add(o.TTFT())
	}
	for _, gap := range gaps.gaps {
		r.tbt.Add(gap)
	}
	if len(gaps.gaps) > 0 {
		o.TailGap, o.MaxGap = gaps.Tail()
		r.tail.Add(o.TailGap)
	}
	if o.Err == nil {
		r.latency.Add(o.End - o.Due)
	}
	r.outcomes = append(r.outcomes, *o)
}

// TTFT is the histogram so far.
func (r *Recorder) TTFT() *Times { return r.ttft }

// Outcomes are in the order of the trace; the caller may complete them.
func (r *Recorder) Outcomes() []Outcome {
	slices.SortFunc(r.outcomes, func(a, b Outcome) int { return cmp.Compare(a.Line, b.Line) })
	return r.outcomes
}

// Summary sums up.
func (r *Recorder) Summary() (*Summary, error) {
	s := &Summary{Requests: len(r.outcomes)}
	for _, part := range []struct {
		from *Times
		to   *Spread
	}{{r.ttft, &s.TTFT}, {r.tbt, &s.TBT}, {r.tail, &s.TailTBT}, {r.latency, &s.Latency}, {r.sendLag, &s.SendLag}} {
		var err error
		if *part.to, err = part.from.Spread(); err != nil {
			return nil, err
		}
	}
	kinds := map[client.Kind]int{}
	first, last, prompts := time.Duration(-1), time.Duration(0), int64(0)
	for i := range r.outcomes {
		o := &r.outcomes[i]
		if first < 0 || o.Due < first {
			first = o.Due
		}
		last = max(last, o.End)
		s.OutputTokens += int64(o.OutputTokens)
		if o.Err != nil {
			s.Failed++
			kinds[client.KindOf(o.Err)]++
			continue
		}
		s.Answered++
		s.PromptTokens += int64(o.PromptTokens)
		s.Cached.add(o, &prompts)
		s.Goodput.add(o, r.slo)
	}
	for kind, n := range kinds {
		s.FailedBy = append(s.FailedBy, Count{string(kind), n})
	}
	slices.SortFunc(s.FailedBy, func(a, b Count) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name)) })
	s.Cached.Share = ratio(float64(s.Cached.Tokens), float64(prompts))
	s.Goodput.TTFTms, s.Goodput.TBTms = ms(r.slo.TTFT), ms(r.slo.TBT)
	s.Goodput.Share = ratio(float64(s.Goodput.Kept), float64(s.Requests))
	if len(r.outcomes) > 0 {
		s.Seconds = (last - first).Seconds()
	}
	s.RequestsPerS = ratio(float64(s.Answered), s.Seconds)
	s.PromptTokensPerS = ratio(float64(s.PromptTokens), s.Seconds)
	s.OutputTokensPerS = ratio(float64(s.OutputTokens), s.Seconds)
	s.Goodput.RequestsPerS = ratio(float64(s.Goodput.Kept), s.Seconds)
	return s, nil
}

func (c *Cached) add(o *Outcome, prompts *int64) {
	switch o.Cache() {
	case Untold:
		c.Untold++
		return
	case AsExpected:
		c.AsExpected++
	case TooFew:
		c.TooFew++
	case TooMany:
		c.TooMany++
	}
	*prompts += int64(o.PromptTokens)
	c.Tokens += int64(o.CachedTokens)
	c.Must += int64(o.Must)
	c.May += int64(o.May)
	c.InOrder += int64(o.InOrder)
}

func (g *Goodput) add(o *Outcome, slo SLO) {
	first, gaps := o.TTFT() <= slo.TTFT, o.TailGap <= slo.TBT
	if first {
		g.KeptTTFT++
	}
	if gaps {
		g.KeptTBT++
	}
	if first && gaps {
		g.Kept++
	}
}

// String is the cached tokens in words.
func (c *Cached) String() string {
	text := fmt.Sprintf("%d of them had as many as expected, %d too few, %d too many", c.AsExpected, c.TooFew, c.TooMany)
	if c.Untold > 0 {
		text += fmt.Sprintf("; of %d the server does not tell (vLLM: --enable-prompt-tokens-details)", c.Untold)
	}
	return text
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// ratio is 0 for b = 0, so that it can be written as JSON.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
