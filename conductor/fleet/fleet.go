package fleet

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// Fleet watches engines. It is safe for concurrent use.
type Fleet struct {
	engines []*engine
	options Options
	costs   *Costs
	client  *http.Client
	log     *slog.Logger
	// arrivals counts engines that came into use.
	arrivals atomic.Uint64
}

// engine is one of the fleet's.
type engine struct {
	config Engine
	// kick has the engine polled now.
	kick chan struct{}

	// mu guards all below.
	mu       sync.Mutex
	health   health
	draining bool
	ranks    []rank
	models   []Model
	counts   Counts
}

// Counts are an engine's since the start.
type Counts struct {
	// Begun are the requests that it was given, Refused those for which nobody listened and
	// Broken those whose connection broke.
	Begun   uint64 `json:"begun"`
	Refused uint64 `json:"refused"`
	Broken  uint64 `json:"broken"`
	// Polls and FailedPolls of it; Outages are how often it went.
	Polls       uint64 `json:"polls"`
	FailedPolls uint64 `json:"failed_polls"`
	Outages     uint64 `json:"outages"`
}

// New returns a fleet of engines that are out until Run has found them well. transport
// makes the polls' requests.
func New(engines []Engine, options Options, transport http.RoundTripper, log *slog.Logger) (*Fleet, error) {
	if err := Check(engines, &options); err != nil {
		return nil, err
	}
	options.setDefaults()
	f := &Fleet{
		options: options, costs: NewCosts(), log: log,
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	for _, config := range engines {
		set(&config.Role, Both)
		set(&config.Ranks, 1)
		e := &engine{config: config, kick: make(chan struct{}, 1), ranks: make([]rank, config.Ranks)}
		for i := range e.ranks {
			e.ranks[i].flights = map[*Flight]struct{}{}
		}
		e.health.since = time.Now()
		e.health.well = options.RecoverAfter - 1 // at the start one poll is enough
		f.engines = append(f.engines, e)
	}
	return f, nil
}

// Run polls until ctx ends, and has ended all that it began when it returns.
func (f *Fleet) Run(ctx context.Context) error {
	var polls sync.WaitGroup
	for _, e := range f.engines {
		polls.Go(func() { f.watch(ctx, e) })
	}
	polls.Wait()
	return nil
}

// Costs are the speeds that were learned.
func (f *Fleet) Costs() *Costs { return f.costs }

// Engine returns an engine as it was configured.
func (f *Fleet) Engine(i int) *Engine { return &f.engines[i].config }

// Len is how many engines there are.
func (f *Fleet) Len() int { return len(f.engines) }

// Arrivals is how often an engine has come into use, or come back. It may be another one
// then: what engines said before may not hold any more.
func (f *Fleet) Arrivals() uint64 { return f.arrivals.Load() }

// Candidate is a rank that a request could go to, with what the scheduler has to know.
type Candidate struct {
	Target
	Name string
	Role Role
	// Since is when it came into use: what it was sent before it may not have any more.
	Since   time.Time
	Prefill scheduler.Prefiller
	Decode  scheduler.Decoder
}

// Candidates appends the ranks that are in use and serve a model, in the fleet's order.
// An empty model is served by all.
func (f *Fleet) Candidates(model string, dst []Candidate) []Candidate {
	now := time.Now()
	for i, e := range f.engines {
		e.mu.Lock()
		if e.usableLocked() && e.servesLocked(model) {
			for j := range e.ranks {
				r := &e.ranks[j]
				dst = append(dst, Candidate{Target{i, j}, e.config.Name, e.config.Role, e.health.since, r.prefiller(now), r.decoder()})
			}
		}
		e.mu.Unlock()
	}
	return dst
}

// Usable is how many engines are in use.
func (f *Fleet) Usable() int {
	n := 0
	for _, e := range f.engines {
		e.mu.Lock()
		if e.usableLocked() {
			n++
		}
		e.mu.Unlock()
	}
	return n
}

func (e *engine) usableLocked() bool {
	return e.health.up && !e.draining && !slices.ContainsFunc(e.ranks, func(r rank) bool { return r.polled.Asleep })
}

func (e *engine) servesLocked(model string) bool {
	if model == "" || e.models == nil {
		return true
	}
	return slices.ContainsFunc(e.models, func(m Model) bool { return m.ID == model })
}

// Refused says that nobody listens at an engine's address. It is out at once.
func (f *Fleet) Refused(i int, err error) {
	e := f.engines[i]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counts.Refused++
	if e.health.refused(err, time.Now()) {
		e.counts.Outages++
		f.log.Warn("an engine is out: nobody listens", "engine", e.config.Name, "error", err)
	}
}

// Broken says that a connection to an engine broke. It is polled at once.
func (f *Fleet) Broken(i int) {
	e := f.engines[i]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counts.Broken++
	e.health.urgent = e.health.up
	select {
	case e.kick <- struct{}{}:
	default: // it is going to be polled
	}
}

// Drain takes an engine out for new requests, or back in. It is false for a name that is
// not known.
func (f *Fleet) Drain(name string, draining bool) bool {
	for _, e := range f.engines {
		if e.config.Name == name {
			e.mu.Lock()
			e.draining = draining
			e.mu.Unlock()
			return true
		}
	}
	return false
}

// Forecast returns what is known of later; it implements scheduler.Forecast.
func (f *Fleet) Forecast() scheduler.Forecast { return forecast{f} }

type forecast struct{ *Fleet }

// Staying implements scheduler.Forecast. Of others' sequences nothing is known, so that
// they stay.
func (f forecast) Staying(in, age time.Duration) int {
	oldest := time.Now().Add(in - age)
	return f.count(
		func(l *Flight) bool { return l.load.Decode && !l.first.IsZero() && l.first.After(oldest) },
		func(r *rank) int { return r.otherSequences },
	)
}

// Arriving implements scheduler.Forecast.
func (f forecast) Arriving(in time.Duration) int {
	by := time.Now().Add(in)
	return f.count(
		func(l *Flight) bool { return l.load.Prefill && l.first.IsZero() && !l.expected.After(by) },
		func(r *rank) int { return r.otherPrompts },
	)
}

func (f forecast) count(ours func(*Flight) bool, others func(*rank) int) int {
	n := 0
	for _, e := range f.engines {
		e.mu.Lock()
		for i := range e.ranks {
			for l := range e.ranks[i].flights {
				if ours(l) {
					n++
				}
			}
			n += others(&e.ranks[i])
		}
		e.mu.Unlock()
	}
	return n
}
