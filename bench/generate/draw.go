package generate

import (
	"math"
	"math/rand/v2"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// drawing is a trace under way.
type drawing struct {
	p   *Profile
	rng *rand.Rand
	// shared are the whole blocks of all requests so far.
	shared [][]int64
	nextID int64
}

// Draw draws n requests of a profile, from a seed, and gives each to write.
func Draw(p *Profile, n int, seed uint64, write func(*trace.Request) error) error {
	if err := p.Validate(); err != nil {
		return err
	}
	d := &drawing{p: p, rng: rand.New(rand.NewPCG(seed, 0))}
	// A stream of its own: arrivals stay when something else is drawn.
	at := newArrivals(&p.Arrivals, n, rand.New(rand.NewPCG(seed, 1)))
	for range n {
		r := d.request()
		r.TimestampMS = at.next()
		if err := write(r); err != nil {
			return err
		}
	}
	return nil
}

func (d *drawing) request() *trace.Request {
	c := d.class()
	z := d.rng.NormFloat64()
	input := c.Input.At(phi(z))
	r := &trace.Request{
		InputTokens:  max(1, int64(math.Round(input))),
		OutputTokens: int64(math.Round(d.p.Output.At(phi(d.beside(d.score(input), d.p.OutputCorrelation))))),
	}
	whole := int(r.InputTokens / trace.BlockTokens)
	var prefix []int64
	if c.shares() && len(d.shared) > 0 {
		depth := min(1, whole)
		if !c.FirstOnly {
			share := c.Depth.At(phi(d.beside(z, c.DepthCorrelation)))
			depth = max(depth, int(math.Round(share*float64(whole))))
		}
		prefix = d.source(int(math.Round(c.Age.At(d.rng.Float64()))), depth)
	}
	r.HashIDs = append(make([]int64, 0, whole+1), prefix...)
	for int64(len(r.HashIDs))*trace.BlockTokens < r.InputTokens {
		r.HashIDs = append(r.HashIDs, d.nextID)
		d.nextID++
	}
	d.shared = append(d.shared, r.HashIDs[:whole])
	return r
}

func (d *drawing) class() *Class {
	u := d.rng.Float64()
	for i := range d.p.Classes {
		if u -= d.p.Classes[i].Probability; u < 0 {
			return &d.p.Classes[i]
		}
	}
	return &d.p.Classes[len(d.p.Classes)-1]
}

// score is the normal score of a prompt's length among those of all classes.
func (d *drawing) score(input float64) float64 {
	rank := 0.0
	for i := range d.p.Classes {
		rank += d.p.Classes[i].Probability * d.p.Classes[i].Input.Rank(input)
	}
	return score(rank)
}

// beside draws a normal variable that correlates with another.
func (d *drawing) beside(z, correlation float64) float64 {
	return correlation*z + math.Sqrt(1-correlation*correlation)*d.rng.NormFloat64()
}

// source is the first depth blocks of the request nearest in age that has so many;
// of the longest if none has.
func (d *drawing) source(age, depth int) []int64 {
	if depth == 0 {
		return nil
	}
	at := min(max(len(d.shared)-age, 0), len(d.shared)-1)
	var longest []int64
	for off := range len(d.shared) {
		for _, i := range [2]int{at - off, at + off} {
			if i < 0 || i >= len(d.shared) {
				continue
			}
			if len(d.shared[i]) >= depth {
				return d.shared[i][:depth]
			}
			if len(d.shared[i]) > len(longest) {
				longest = d.shared[i]
			}
		}
	}
	return longest
}
