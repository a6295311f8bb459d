package vllmdiff

import (
	"math/rand/v2"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
)

// midShare is the share of cases whose hit lies strictly between 0 and the
// length that the generator aims at: the others say little.
const midShare = 0.65

// Generator makes random cases from a seed.
type Generator struct {
	rng        *rand.Rand
	made, mids int
	longest    int
}

// SetLongest makes the generator draw up to n hashes a request, for groups with
// windows far longer than those that it makes itself.
func (g *Generator) SetLongest(n int) { g.longest = n }

// NewGenerator returns a generator whose cases follow from the seed alone.
func NewGenerator(seed uint64) *Generator {
	return &Generator{rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

// Mids returns how many of the cases made had a hit strictly between 0 and the
// length.
func (g *Generator) Mids() int { return g.mids }

// Next returns the next case.
func (g *Generator) Next() *Case {
	c := g.config()
	g.Question(c)
	return c
}

// Question makes a question for the groups and sizes that c has.
func (g *Generator) Question(c *Case) {
	switch p := g.rng.IntN(100); {
	case p < 44:
		g.find(c)
	case p < 89:
		g.lookup(c)
	case p < 97:
		c.Op = coordcases.OpStoreMask
		g.mask(c)
	default:
		c.Op = coordcases.OpLookupMask
		g.mask(c)
	}
	g.made++
	for try := 0; c.Length() > 0 && c.Exists != nil; try++ {
		answer, err := c.Answer()
		if err == nil && answer.Hit > 0 && answer.Hit < c.Length() {
			g.mids++
			break
		}
		if err != nil || try == 12 || float64(g.mids) > midShare*float64(g.made) {
			break
		}
		g.store(c)
	}
}

// chance is true with a probability of percent.
func (g *Generator) chance(percent int) bool { return g.rng.IntN(100) < percent }

func pick[T any](g *Generator, from ...T) T { return from[g.rng.IntN(len(from))] }

// config makes the groups and sizes of a case.
func (g *Generator) config() *Case {
	c := &Case{TP: 1, PCP: 1, DCP: 1, PP: 1, KVHeads: 1}
	c.H = pick(g, 1, 2, 4, 8, 16)
	ratio := pick(g, 1, 1, 2, 4, 6, 8, 12)
	c.L = c.H * ratio
	c.Fine = g.chance(30)
	c.UseEagle = g.chance(30)
	uniform := g.chance(25) // all blocks as large as the scheduler's
	n := pick(g, 1, 1, 2, 2, 2, 3, 3, 4, 5)
	for i := range n {
		if i > 0 && g.chance(25) {
			again := c.Groups[g.rng.IntN(i)]
			again.Eagle = g.chance(20)
			c.Groups = append(c.Groups, again)
			continue
		}
		block := c.L
		if !uniform {
			for block = c.H * (1 + g.rng.IntN(ratio)); c.L%block != 0; {
				block = c.H * (1 + g.rng.IntN(ratio))
			}
		}
		c.Groups = append(c.Groups, g.group(c, block))
	}
	if g.chance(12) {
		c.DCP = pick(g, 2, 4)
		for _, s := range c.Config().Groups {
			if s.BlockTokens%c.DCP != 0 {
				c.DCP = 1
				break
			}
		}
	}
	if g.chance(70) {
		r := pick(g, 0, 0, c.L, 2*c.L, 4*c.L, c.H)
		c.R = &r
	}
	return c
}

// group makes one group.
func (g *Generator) group(c *Case, block int) coordcases.Group {
	group := coordcases.Group{B: block, Tag: g.rng.IntN(2), Eagle: g.chance(15)}
	switch p := g.rng.IntN(100); {
	case p < 45:
		group.Kind = pick(g, "full", "full", "full", "mla", "hidden", "rswa", "sink")
	case p < 73:
		group.Kind = pick(g, "swa", "swa", "swa_mla")
		group.W = 1 + g.rng.IntN(pick(g, 2, block+1, 3*block+1, 2*c.L+2))
	case p < 92 || c.UseEagle:
		group.Kind = "mamba"
	default:
		group.Kind = "chunked"
		group.W = 1 + g.rng.IntN(4*c.L)
		if g.chance(60) {
			group.W = c.L * (1 + g.rng.IntN(4))
		}
		if g.chance(85) {
			group.B, group.Eagle, c.Fine = c.L, false, false
		}
	}
	if g.chance(15) {
		group.Layers = 1 + g.rng.IntN(3)
	}
	return group
}

// hashes draws a number of hashes, mostly enough for two scheduler blocks.
func (g *Generator) hashes(c *Case) int {
	n := g.rng.IntN(pick(g, 8, 24, 60))
	if g.chance(80) {
		n += 2 * c.L / c.H
	}
	if g.longest > 0 {
		n = min(n*g.longest/60, g.longest)
	}
	return n
}

func (g *Generator) find(c *Case) {
	c.Op = coordcases.OpFind
	c.N = g.hashes(c)
	c.M = c.N * c.H
	switch {
	case g.chance(60):
		c.M = c.M / c.L * c.L
	case g.chance(30):
		c.M = g.rng.IntN(c.M + 1)
	}
	c.ApplyEagle = g.chance(75)
	g.store(c)
}

func (g *Generator) lookup(c *Case) {
	c.Op = coordcases.OpLookup
	if g.chance(5) {
		g.share(c)
		return
	}
	c.N = g.hashes(c)
	c.Tokens = c.N*c.H + g.rng.IntN(c.H)
	if g.chance(10) {
		c.Tokens = g.rng.IntN(c.Tokens + 1)
	}
	c.TP = c.DCP * pick(g, 1, 1, 2, 3, 4)
	c.PP = pick(g, 1, 1, 1, 2, 3)
	c.PCP = pick(g, 1, 1, 1, 2)
	c.KVHeads = pick(g, 1, 2, 3, 4, 8)
	c.Model = pick(g, "m", "org/model-7b", "/data/models/x/", "a//")
	c.Prefix = pick(g, "", "", "tenant", "a@b")
	c.Rank = g.rng.IntN(c.TP)
	c.Layout = pick(g, "LBHNC", "LBHNC", "LBNHC", "BLHNC")
	if g.chance(30) {
		c.StoreTP = pick(g, c.TP, 2*c.TP, 3, -1)
		c.Cross = g.chance(10)
		if c.StoreTP > 0 && g.chance(60) {
			c.KVHeads = c.StoreTP * pick(g, 1, 2)
		}
		if g.chance(70) {
			c.PCP = 1
		}
	}
	g.store(c)
}

// share makes a lookup of a TP-shared layout.
func (g *Generator) share(c *Case) {
	c.Groups = []coordcases.Group{{Kind: "full", B: c.L, Eagle: g.chance(20)}}
	c.Fine, c.DCP = false, 1
	c.N = g.hashes(c)
	c.Tokens = c.N*c.H + g.rng.IntN(c.H)
	c.TP, c.PP = pick(g, 1, 2, 4), pick(g, 1, 2, 3)
	c.StoreTP = c.TP * pick(g, 1, 2, 3)
	c.KVHeads = pick(g, 1, c.StoreTP, 2*c.StoreTP)
	c.Rank = g.rng.IntN(c.TP)
	c.Layout = pick(g, "LBHNC", "LBNHC")
	c.Model = "org/model"
	g.store(c)
}

func (g *Generator) mask(c *Case) {
	a := c.L
	if c.Fine {
		a = c.H
	}
	c.T = a * g.rng.IntN(pick(g, 4, 12, max(40, g.longest)))
	if c.Op == coordcases.OpLookupMask {
		return
	}
	if g.chance(60) {
		c.Start = g.rng.IntN(c.T + c.L + 1)
	}
	if g.chance(85) {
		p := g.rng.IntN(c.T + 2*c.L + 1)
		if g.chance(40) {
			p = p / c.L * c.L
		}
		c.NPrompt = &p
	}
}

// store makes what is stored: mostly whole up to some length, with holes, and a
// little behind it.
func (g *Generator) store(c *Case) {
	c.Exists, c.Partial = nil, nil
	if g.chance(3) {
		return
	}
	exists := [][2]int{}
	cut := g.rng.IntN(c.N + 1)
	holes := pick(g, 0, 0, 1, 3, 20)
	for i, group := range c.Groups {
		own := cut
		if g.chance(25) {
			own = g.rng.IntN(c.N + 1)
		}
		scale := group.B / c.H
		for j := range c.N {
			percent := 100 - holes
			switch {
			case j >= own:
				percent = 25
			case (j+1)%scale != 0:
				// A boundary inside a chunk: stored for fine-grained hits only.
				percent = 25
				if !c.Fine {
					percent = 0
				}
			}
			if !g.chance(percent) {
				continue
			}
			if c.Op == coordcases.OpLookup && g.chance(2) {
				c.Partial = append(c.Partial, [3]int{i, j, g.rng.IntN(8)})
				continue
			}
			exists = append(exists, [2]int{i, j})
		}
	}
	c.Exists = &exists
}
