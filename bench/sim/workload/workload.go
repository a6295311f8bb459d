package workload

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// BlockTokens is the tokens of a block; a prompt's last may have fewer.
const BlockTokens = trace.BlockTokens

// Request is one of a workload.
type Request struct {
	Arrival      time.Duration
	InputTokens  int
	OutputTokens int
	// Blocks are the keys of the prompt's blocks: equal keys, equal prefixes.
	Blocks []uint64
}

// Workload is requests by arrival.
type Workload struct {
	Name     string
	Requests []Request
}

// ErrShape: a workload can't be made as asked.
var ErrShape = errors.New("no such workload")

// Read reads a trace, which errors call name.
func Read(in io.Reader, name string) (*Workload, error) {
	w := &Workload{Name: name}
	r := trace.NewReader(in, name)
	for {
		next, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w, nil
		}
		if err != nil {
			return nil, err
		}
		q := Request{
			Arrival: time.Duration(next.TimestampMS) * time.Millisecond, InputTokens: int(next.InputTokens), OutputTokens: int(next.OutputTokens),
			Blocks: make([]uint64, len(next.HashIDs)),
		}
		for i, id := range next.HashIDs {
			q.Blocks[i] = key(uint64(id))
		}
		w.Requests = append(w.Requests, q)
	}
}

// key spreads a block's number as evenly as a hash would be (the finaliser of
// SplitMix64), and never is 0.
func key(id uint64) uint64 {
	x := (id + 1) * 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// At returns the workload with arrivals that come speed times as fast, each first
// put off by a random time below jitter, which is for traces whose clock ticks
// coarsely. The requests' blocks are shared with the original.
func (w *Workload) At(speed float64, jitter time.Duration, random *rand.Rand) (*Workload, error) {
	if !(speed > 0) || jitter < 0 {
		return nil, fmt.Errorf("%w: speed %v, jitter %v", ErrShape, speed, jitter)
	}
	out := &Workload{Name: w.Name, Requests: slices.Clone(w.Requests)}
	for i := range out.Requests {
		r := &out.Requests[i]
		if jitter > 0 {
			r.Arrival += time.Duration(random.Int64N(int64(jitter)))
		}
		r.Arrival = time.Duration(float64(r.Arrival) / speed)
	}
	slices.SortStableFunc(out.Requests, func(a, b Request) int { return int(a.Arrival - b.Arrival) })
	return out, nil
}

// WithOutputs returns the workload with that many tokens of output each.
func (w *Workload) WithOutputs(tokens int) *Workload {
	out := &Workload{Name: w.Name, Requests: slices.Clone(w.Requests)}
	for i := range out.Requests {
		out.Requests[i].OutputTokens = tokens
	}
	return out
}
