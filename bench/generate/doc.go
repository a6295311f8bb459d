// Package generate makes synthetic traces in Mooncake's format from statistics: how
// requests arrive, how long prompts and outputs are, and what prompts share.
//
// The statistics are a Profile. One is fitted to a trace, or written down for a
// workload that the papers describe; it holds no request of a trace, only
// quantiles, rates and shares. Sharing is told by class: a request begins anew,
// shares its first block only (a system prompt), or goes on from an earlier
// request, some share of its length deep and some number of requests old. The same
// profile and seed give the same bytes.
//
// What a profile does not keep: which conversation a request belongs to. Popular
// prefixes arise from ages alone, so that hit ratios of an unbounded cache come out
// as in the trace, those of a small one nearly.
package generate
