package generate

import (
	"maps"
	"slices"
)

// Workloads are the names of the workloads that the papers describe.
func Workloads() []string {
	return slices.Sorted(maps.Keys(workloads()))
}

// Workload is one by name, false if there is none. Mean lengths and shares of
// cached tokens are the papers'; how lengths spread is not told there, and taken as
// log-normal. Arrivals are Poisson, one a second until somebody sets a rate.
func Workload(name string) (*Profile, bool) {
	build, ok := workloads()[name]
	if !ok {
		return nil, false
	}
	p := build()
	p.Name, p.Arrivals = name, Arrivals{RatePerS: 1, Dispersion: 1, GridMS: 1, Parts: []float64{1}}
	return p, true
}

func workloads() map[string]func() *Profile {
	return map[string]func() *Profile{
		"arxiv":          arxiv,
		"l-eval":         lEval,
		"simulated-16k":  func() *Profile { return simulated(16 << 10) },
		"simulated-32k":  func() *Profile { return simulated(32 << 10) },
		"simulated-64k":  func() *Profile { return simulated(64 << 10) },
		"simulated-128k": func() *Profile { return simulated(128 << 10) },
	}
}

// arxiv summarises papers: 8,088 tokens in, 229 out, next to nothing shared.
func arxiv() *Profile {
	return &Profile{
		Output: logNormal(229, .4), OutputCorrelation: .3,
		Classes: []Class{{Name: "new", Probability: 1, Input: logNormal(8088, .5)}},
	}
}

// lEval asks several questions of one long document: 19,019 tokens in, 72 out, more
// than four fifths of them cached. A question is some hundred tokens behind the
// document, so that all but the last block or two are shared.
func lEval() *Profile {
	length := logNormal(19019, .6)
	return &Profile{
		Output: logNormal(72, .8),
		Classes: []Class{
			{Name: "new document", Probability: .15, Input: length},
			{Name: "next question", Probability: .85, Input: length, Depth: Quantiles{.94, .99}, Age: Quantiles{1, 2, 4, 8, 16}},
		},
	}
}

// simulated prompts have one length, 512 tokens of output, and half of them cached.
func simulated(tokens float64) *Profile {
	return &Profile{
		Output:  Quantiles{512},
		Classes: []Class{{Name: "half shared", Probability: 1, Input: Quantiles{tokens}, Depth: Quantiles{.5}, Age: Quantiles{1, 8, 64}}},
	}
}
