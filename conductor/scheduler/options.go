package scheduler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Strategy is how a prefill instance is chosen.
type Strategy string

// Strategies.
const (
	Random         Strategy = "random"
	LoadBalancing  Strategy = "load-balancing"
	CacheAware     Strategy = "cache-aware"
	KVCacheCentric Strategy = "kvcache-centric"
)

// Strategies returns them all, the simplest first.
func Strategies() []Strategy { return []Strategy{Random, LoadBalancing, CacheAware, KVCacheCentric} }

// Balance is when a longer prefix is fetched from another instance.
type Balance string

// Balances.
const (
	// ByThreshold fetches what is more than Threshold times as long as the local one.
	ByThreshold Balance = "threshold"
	// ByCost fetches when that makes the first token come sooner.
	ByCost Balance = "cost"
	// ByLinks is ByThreshold with a threshold that rises with the wait for links.
	ByLinks Balance = "links"
)

// Admission is when a request is refused for what it would meet on the decode
// side.
type Admission string

// Admissions. A request whose first token would be too late is refused by all but
// AdmitAll.
const (
	// AdmitAll refuses nothing.
	AdmitAll Admission = "all"
	// AdmitBaseline looks at the decode side only when the prefill is done.
	AdmitBaseline Admission = "baseline"
	// AdmitEarly also refuses at arrival by the decode side's load at that moment.
	AdmitEarly Admission = "early"
	// AdmitPrediction refuses at arrival by the load expected when the prefill will
	// be done: all that are younger than Residence then, spread evenly.
	AdmitPrediction Admission = "prediction"
	// AdmitFull is AdmitPrediction with a share of Slack more than fits, so that the
	// decode side is not left idle by those who finish sooner.
	AdmitFull Admission = "full"
)

// Admissions returns them all.
func Admissions() []Admission {
	return []Admission{AdmitAll, AdmitBaseline, AdmitEarly, AdmitPrediction, AdmitFull}
}

// Options are what a Scheduler goes by.
type Options struct {
	Strategy Strategy
	Balance  Balance
	// Threshold is compared with best/local, strictly.
	Threshold float64
	// LinkWait is, under ByLinks, the wait at which the threshold is twice as high.
	LinkWait time.Duration
	// WorkWeight is how many seconds of its own time to first token a request gives
	// for a second of work that others are spared. 0 is Algorithm 1.
	WorkWeight float64
	// WorkBacklog adds to WorkWeight the mean queue of the instances divided by this:
	// the more wait, the more a second of work costs. 0: not.
	WorkBacklog time.Duration
	// Patience is the order in which a prefill instance takes its prompts: by arrival
	// plus Patience times their work, so that a prompt waits only for shorter ones
	// that came at most Patience times the difference later. 0: first come, first
	// served.
	Patience float64
	// DecodeAffinity takes the decode instance that holds most of the prefix, of those
	// whose iteration is within the request's objective and at most this share longer
	// than the least loaded one's. 0: the least loaded is taken. Without a bound, all
	// requests would go where the first was.
	DecodeAffinity float64

	Admission Admission
	// Residence is how long a sequence decodes, as AdmitPrediction assumes.
	Residence time.Duration
	// Slack is AdmitFull's share beyond the objective.
	Slack float64
}

// Default are the options that stand for the papers' scheduler.
func Default() Options {
	return Options{
		Strategy: KVCacheCentric, Balance: ByThreshold, Threshold: 4, LinkWait: 100 * time.Millisecond,
		Admission: AdmitAll, Residence: time.Minute, Slack: 0.1,
	}
}

// ErrOptions: a Scheduler can't go by these options.
var ErrOptions = errors.New("scheduler options")

// mostShare bounds what durations are multiplied with, so that an hour stays one that
// can be told.
const mostShare = 1e6

// Validate returns all faults.
func (o *Options) Validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
		}
	}
	share := func(name string, v float64) {
		fault(!(v >= 0 && v <= mostShare), "%s %v; want 0 to %v", name, v, mostShare)
	}
	fault(!slices.Contains(Strategies(), o.Strategy), "no strategy %q; want one of %v", o.Strategy, Strategies())
	fault(!slices.Contains([]Balance{ByThreshold, ByCost, ByLinks}, o.Balance), "no balance %q; want %s, %s or %s", o.Balance, ByThreshold, ByCost, ByLinks)
	fault(!slices.Contains(Admissions(), o.Admission), "no admission %q; want one of %v", o.Admission, Admissions())
	fault(!(o.Threshold >= 1 && o.Threshold <= math.MaxFloat64), "threshold %v; want 1 or more", o.Threshold)
	fault(o.Balance == ByLinks && o.LinkWait <= 0, "link wait %v; want more than 0", o.LinkWait)
	share("work weight", o.WorkWeight)
	fault(o.WorkBacklog < 0, "work backlog %v; want 0 or more", o.WorkBacklog)
	share("patience", o.Patience)
	share("decode affinity", o.DecodeAffinity)
	fault((o.Admission == AdmitPrediction || o.Admission == AdmitFull) && o.Residence <= 0, "residence %v; want more than 0", o.Residence)
	share("slack", o.Slack)
	return errors.Join(faults...)
}
