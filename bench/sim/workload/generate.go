package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Statistics are what a generated workload keeps to.
type Statistics struct {
	Name     string
	Requests int
	// PerSecond is the rate of a Poisson process.
	PerSecond float64
	// InputTokens and OutputTokens are means. InputSpread is the deviation of the
	// logarithm of a prompt's length, 0 for one length.
	InputTokens, OutputTokens int
	InputSpread               float64
	// A document of SharedPart of the prompt is asked about Uses times, by requests
	// that come in random order among those of Together documents.
	SharedPart     float64
	Uses, Together int
}

// limits of a generated workload.
const (
	maxRequests = 10_000_000
	maxInput    = 1 << 20
)

// ArXiv is like summaries of papers: nothing shared.
func ArXiv() Statistics {
	return Statistics{Name: "arxiv", Requests: 2000, PerSecond: 1, InputTokens: 8088, InputSpread: 0.5, OutputTokens: 229, Uses: 1, Together: 1}
}

// LEval is like questions about long documents: four fifths are in a cache.
func LEval() Statistics {
	return Statistics{
		Name: "l-eval", Requests: 2000, PerSecond: 1, InputTokens: 19019, InputSpread: 0.5, OutputTokens: 72, SharedPart: .98, Uses: 7, Together: 4,
	}
}

// Long is like the papers' simulated data: one length, half of it in a cache.
func Long(inputTokens int) Statistics {
	return Statistics{
		Name: fmt.Sprintf("simulated-%dk", inputTokens>>10), Requests: 600, PerSecond: 1, InputTokens: inputTokens, OutputTokens: 512,
		SharedPart: .55, Uses: 11, Together: 4,
	}
}

// Generate makes a workload. The same seed makes the same.
func Generate(s Statistics, seed uint64) (*Workload, error) {
	if s.Requests < 1 || s.Requests > maxRequests || s.InputTokens < 1 || s.InputTokens > maxInput || s.OutputTokens < 1 ||
		!(s.PerSecond > 0) || s.SharedPart < 0 || s.SharedPart > 1 || s.Uses < 1 || s.Together < 1 || !(s.InputSpread >= 0) {
		return nil, fmt.Errorf("%w: %+v", ErrShape, s)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	w := &Workload{Name: s.Name, Requests: make([]Request, s.Requests)}
	order := s.documents(random)
	length := make([]int, slices.Max(order)+1)
	for i := range length {
		length[i] = s.length(random)
	}
	now, next := 0.0, uint64(len(length))<<24 // ids of what is shared are below
	for i := range w.Requests {
		now += random.ExpFloat64() / s.PerSecond
		tokens := length[order[i]]
		r := Request{
			Arrival: time.Duration(now * float64(time.Second)), InputTokens: tokens, OutputTokens: s.OutputTokens,
			Blocks: make([]uint64, (tokens+BlockTokens-1)/BlockTokens),
		}
		shared := int(s.SharedPart * float64(tokens) / BlockTokens)
		for b := range r.Blocks {
			if b < shared && s.Uses > 1 {
				r.Blocks[b] = key(uint64(order[i])<<24 | uint64(b))
			} else {
				r.Blocks[b] = key(next)
				next++
			}
		}
		w.Requests[i] = r
	}
	return w, nil
}

// documents is, by request, what it asks about.
func (s *Statistics) documents(random *rand.Rand) []int {
	order := make([]int, s.Requests)
	for i := range order {
		order[i] = i / s.Uses
	}
	window := s.Uses * s.Together
	for begin := 0; begin < len(order); begin += window {
		part := order[begin:min(begin+window, len(order))]
		random.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
	return order
}

// length draws a prompt's, with the mean that is asked for.
func (s *Statistics) length(random *rand.Rand) int {
	x := float64(s.InputTokens) * math.Exp(s.InputSpread*random.NormFloat64()-s.InputSpread*s.InputSpread/2)
	return min(max(int(x), 1), maxInput)
}
