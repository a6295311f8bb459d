package scheduler

import (
	"cmp"
	"time"
)

// Decoder chooses the decode instance for a request, the one whose next iteration
// is the shortest with it unless affinity says otherwise, and returns that time. A request may be placed anew
// when its prefill is done.
//
// REQUIRES: there is at least one.
func (s *Scheduler) Decoder(r *Request, all []Decoder) (int, time.Duration) {
	best, shortest := 0, s.iteration(r, &all[0])
	for i := 1; i < len(all); i++ {
		if t := s.iteration(r, &all[i]); t < shortest {
			best, shortest = i, t
		}
	}
	limit := shortest + time.Duration(s.options.DecodeAffinity*float64(shortest))
	if r.TBT > 0 {
		limit = min(limit, r.TBT)
	}
	for i := range all {
		if t := s.iteration(r, &all[i]); s.options.DecodeAffinity > 0 && all[i].CachedBlocks > all[best].CachedBlocks && t <= limit {
			best, shortest = i, t
		}
	}
	return best, shortest
}

func (s *Scheduler) iteration(r *Request, d *Decoder) time.Duration {
	return slowed(s.costs.Iteration(d.Sequences+1, d.ContextTokens+int64(r.Tokens)), d.Slowness)
}

// admit says whether a request that would go as decided is refused.
func (s *Scheduler) admit(r *Request, f *Facts, d *Decision) Reason {
	if s.options.Admission == AdmitAll {
		return Accepted
	}
	if r.TTFT > 0 && d.Term.TTFT > r.TTFT {
		return LateFirstToken
	}
	if r.TBT == 0 || len(f.Decode) == 0 {
		return Accepted
	}
	expected, limit := d.TBT, r.TBT
	switch s.options.Admission {
	case AdmitAll, AdmitBaseline:
		return Accepted
	case AdmitEarly:
	case AdmitPrediction:
		expected = s.predicted(f, d.Term.TTFT)
	case AdmitFull:
		expected = s.predicted(f, d.Term.TTFT)
		limit += time.Duration(s.options.Slack * float64(limit))
	}
	if expected > limit {
		return DecodeBusy
	}
	return Accepted
}

// AdmitDecode is the second check, when the prefill is done: whether an instance
// may take the request, whose time between tokens is then what Decoder said.
func (s *Scheduler) AdmitDecode(r *Request, expected time.Duration) Reason {
	if s.options.Admission != AdmitAll && r.TBT > 0 && expected > r.TBT {
		return DecodeBusy
	}
	return Accepted
}

// predicted is the time of an iteration once the prefill is done, if sequences are
// spread evenly and are as long as those that decode now, on instances of the mean
// slowness.
func (s *Scheduler) predicted(f *Facts, in time.Duration) time.Duration {
	n, sequences, context, slowness := len(f.Decode), 0, int64(0), 0.0
	for i := range f.Decode {
		sequences += f.Decode[i].Sequences
		context += f.Decode[i].ContextTokens
		slowness += cmp.Or(f.Decode[i].Slowness, 1)
	}
	var mean int64
	if sequences > 0 {
		mean = context / int64(sequences)
	}
	then := f.Forecast.Staying(in, s.options.Residence) + f.Forecast.Arriving(in) + 1
	// Instances have whole sequences; the mean of theirs lies between two.
	each, rest := then/n, then%n
	low := s.costs.Iteration(each, int64(each)*mean)
	high := s.costs.Iteration(each+1, int64(each+1)*mean)
	return slowed(low+time.Duration(float64(high-low)*float64(rest)/float64(n)), slowness/float64(n))
}
