package router

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// RoundRobin is a policy besides the scheduler's strategies: each engine in its turn.
const RoundRobin scheduler.Strategy = "round-robin"

// Policies returns all, the simplest first.
func Policies() []scheduler.Strategy {
	return append([]scheduler.Strategy{RoundRobin}, scheduler.Strategies()...)
}

// Config is how a router works. Of fields that are 0 SetDefaults says what they are.
type Config struct {
	// Policy is a strategy of the scheduler, or RoundRobin.
	Policy scheduler.Strategy
	// Scheduler has all else that it goes by; its Strategy is not used.
	Scheduler scheduler.Options
	// Replication of prefixes that many ask for; none by default.
	Replication scheduler.ReplicationOptions
	// Pooled: engines load from a store that they share, so that what one has stored any
	// other can fetch.
	Pooled bool

	// TTFT and TBT are the objectives of requests that name none; 0: none.
	TTFT, TBT time.Duration

	// TokenizeTimeout is how long a request waits for its token ids, and HandoverTimeout,
	// with prefill and decode apart, for these and for the prefix to be stored.
	TokenizeTimeout, HandoverTimeout time.Duration
	// TokenBytes bounds the token ids that are remembered.
	TokenBytes int64
	// SendTokens puts a completion's token ids in place of its prompt where that means the
	// same, so that it is tokenised once.
	SendTokens bool
	// SendPriority puts the scheduler's priority into requests that have none. Engines must
	// be started with --scheduling-policy priority.
	SendPriority bool

	// MaxBodyBytes and MaxInFlight bound requests; MaxWaiting more wait for a place, the
	// most urgent first.
	MaxBodyBytes            int64
	MaxInFlight, MaxWaiting int
	// BodiesBytes bounds the bodies of all requests that are under way or wait, and what is
	// asked about them. By default 512 MiB, or four of the longest.
	BodiesBytes int64
	// Attempts is how many engines a request is sent to at most.
	Attempts int
	// FirstByteTimeout is how long an engine may take for the first byte of a stream, or for
	// the one token of a prefill.
	FirstByteTimeout time.Duration
	// WriteTimeout is how long a client may take to read a part of an answer.
	WriteTimeout time.Duration

	// Decisions is how many are remembered.
	Decisions int
	// Contexts is how many there may be, of ContextBytes each.
	Contexts     int
	ContextBytes int64
	// ContextTTL and MaxContextTTL are for how long they are kept.
	ContextTTL, MaxContextTTL time.Duration
	// Reservations is how many decisions of POST /schedule are counted as in flight, each
	// for at most ReservationTTL.
	Reservations   int
	ReservationTTL time.Duration
}

// SetDefaults gives fields that are 0 their values.
func (c *Config) SetDefaults() {
	set(&c.Policy, scheduler.KVCacheCentric)
	if c.Scheduler == (scheduler.Options{}) {
		c.Scheduler = DefaultScheduler()
	}
	set(&c.TokenizeTimeout, 200*time.Millisecond)
	set(&c.HandoverTimeout, 2*time.Second)
	set(&c.TokenBytes, 64<<20)
	set(&c.MaxBodyBytes, 32<<20)
	set(&c.MaxInFlight, 4096)
	set(&c.MaxWaiting, 1024)
	set(&c.BodiesBytes, max(512<<20, 4*c.MaxBodyBytes))
	set(&c.Attempts, 3)
	set(&c.FirstByteTimeout, 10*time.Minute)
	set(&c.WriteTimeout, time.Minute)
	set(&c.Decisions, 1024)
	set(&c.Contexts, 256)
	set(&c.ContextBytes, 4<<20)
	set(&c.ContextTTL, time.Hour)
	set(&c.MaxContextTTL, 7*24*time.Hour)
	set(&c.Reservations, 4096)
	set(&c.ReservationTTL, 5*time.Minute)
}

// DefaultScheduler has what did best in the simulator. Work counts as much as waiting
// does: a request goes where its prefix is, unless it would wait longer there than the
// prefix takes to compute twice.
func DefaultScheduler() scheduler.Options {
	o := scheduler.Default()
	o.Balance, o.Admission = scheduler.ByCost, scheduler.AdmitEarly
	o.WorkWeight, o.Patience = 1, 5
	return o
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ErrConfig: a router can't work like this.
var ErrConfig = errors.New("router configuration")

// Validate returns all faults.
func (c *Config) Validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
		}
	}
	fault(!slices.Contains(Policies(), c.Policy), "no policy %q; want one of %v", c.Policy, Policies())
	options := c.options()
	if err := options.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	if err := c.Replication.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	for name, d := range map[string]time.Duration{
		"ttft": c.TTFT, "tbt": c.TBT, "tokenize timeout": c.TokenizeTimeout, "handover timeout": c.HandoverTimeout,
		"first byte timeout": c.FirstByteTimeout, "write timeout": c.WriteTimeout, "context ttl": c.ContextTTL, "longest context ttl": c.MaxContextTTL, "reservation ttl": c.ReservationTTL,
	} {
		fault(d < 0, "%s of %v; want 0 or more", name, d)
	}
	fault(c.ContextTTL > c.MaxContextTTL, "contexts are kept for %v, and for %v at most", c.ContextTTL, c.MaxContextTTL)
	for name, n := range map[string]int64{
		"bytes of token ids": c.TokenBytes, "bytes of a body": c.MaxBodyBytes, "requests in flight": int64(c.MaxInFlight), "attempts": int64(c.Attempts),
		"decisions": int64(c.Decisions), "contexts": int64(c.Contexts), "bytes of a context": c.ContextBytes, "reservations": int64(c.Reservations),
	} {
		fault(n < 1 || n > math.MaxInt32<<10, "%s: %d; want 1 or more", name, n)
	}
	fault(c.BodiesBytes < c.MaxBodyBytes, "%d bytes of all bodies, and %d of one", c.BodiesBytes, c.MaxBodyBytes)
	fault(c.MaxWaiting < 0, "%d requests wait; want 0 or more", c.MaxWaiting)
	return errors.Join(faults...)
}

// options are the scheduler's, with the strategy.
func (c *Config) options() scheduler.Options {
	o := c.Scheduler
	if o.Strategy = c.Policy; c.Policy == RoundRobin {
		o.Strategy = scheduler.CacheAware // of the one whose turn it is
	}
	return o
}
