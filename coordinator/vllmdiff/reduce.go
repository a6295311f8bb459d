package vllmdiff

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
)

// Reduce looks for a smaller case on which fails still holds, trying at most
// budget cases.
func Reduce(c *Case, budget int, fails func(*Case) bool) *Case {
	for {
		smaller := firstFailing(c, &budget, fails)
		if smaller == nil {
			return c
		}
		c = smaller
	}
}

func firstFailing(c *Case, budget *int, fails func(*Case) bool) *Case {
	for _, candidate := range candidates(c) {
		if *budget--; *budget < 0 {
			return nil
		}
		if fails(candidate) {
			return candidate
		}
	}
	return nil
}

// candidates are the cases one step smaller, the largest steps first.
func candidates(c *Case) []*Case {
	var all []*Case
	try := func(change func(*Case)) {
		d := clone(c)
		change(d)
		all = append(all, d)
	}
	if len(c.Groups) > 1 {
		for i := range c.Groups {
			try(func(d *Case) { removeGroup(d, i) })
		}
	}
	for _, n := range []int{c.N / 2, c.N - 1} {
		if n >= 0 && n < c.N {
			try(func(d *Case) { cutHashes(d, n) })
		}
	}
	for _, field := range []func(*Case) *int{
		func(d *Case) *int { return &d.M }, func(d *Case) *int { return &d.Tokens },
		func(d *Case) *int { return &d.T }, func(d *Case) *int { return &d.Start },
	} {
		step := c.L
		if c.Fine {
			step = c.H
		}
		if *field(c) >= step {
			try(func(d *Case) { *field(d) -= step })
		}
	}
	if c.TP*c.PCP*c.PP > 1 && c.DCP == 1 && c.StoreTP == 0 {
		try(func(d *Case) { d.TP, d.PCP, d.PP = 1, 1, 1 })
	}
	if c.UseEagle {
		try(func(d *Case) { d.UseEagle = false })
	}
	for i, g := range c.Groups {
		if g.Eagle {
			try(func(d *Case) { d.Groups[i].Eagle = false })
		}
		if g.Layers > 0 {
			try(func(d *Case) { d.Groups[i].Layers = 0 })
		}
	}
	if len(c.Partial) > 0 {
		try(func(d *Case) { d.Partial = nil })
	}
	if c.Exists != nil {
		n := len(*c.Exists)
		for size := n / 2; size >= 1; size /= 2 {
			for at := 0; at < n; at += size {
				try(func(d *Case) {
					kept := slices.Delete(slices.Clone(*c.Exists), at, min(at+size, n))
					d.Exists = &kept
				})
			}
		}
	}
	return all
}

func clone(c *Case) *Case {
	d := *c
	d.Groups = slices.Clone(c.Groups)
	d.Partial = slices.Clone(c.Partial)
	if c.Exists != nil {
		exists := slices.Clone(*c.Exists)
		d.Exists = &exists
	}
	return &d
}

func removeGroup(c *Case, group int) {
	c.Groups = slices.Delete(c.Groups, group, group+1)
	renumber := func(g int) int {
		if g > group {
			return g - 1
		}
		return g
	}
	if c.Exists != nil {
		var kept [][2]int
		for _, e := range *c.Exists {
			if e[0] != group {
				kept = append(kept, [2]int{renumber(e[0]), e[1]})
			}
		}
		c.Exists = &kept
	}
	var partial [][3]int
	for _, p := range c.Partial {
		if p[0] != group {
			partial = append(partial, [3]int{renumber(p[0]), p[1], p[2]})
		}
	}
	c.Partial = partial
}

func cutHashes(c *Case, n int) {
	c.N = n
	c.M = min(c.M, n*c.H)
	if c.Op == coordcases.OpLookup {
		c.Tokens = min(c.Tokens, n*c.H)
	}
	if c.Exists != nil {
		kept := slices.DeleteFunc(slices.Clone(*c.Exists), func(e [2]int) bool { return e[1] >= n })
		c.Exists = &kept
	}
	c.Partial = slices.DeleteFunc(c.Partial, func(p [3]int) bool { return p[1] >= n })
}
