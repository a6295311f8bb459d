package level

import (
	"log/slog"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Options are what New needs.
type Options struct {
	Client *mooncake.Client
	// Memory is what the client's engine has registered: the mapping that the
	// store's pieces are of.
	Memory []byte
	// Lease is how long the master leases what was asked for; 0:
	// mooncake.DefaultLease.
	Lease time.Duration
	// Absent is how long a chunk that is not there is taken for absent unasked; 0: 1s.
	Absent time.Duration
	// QueueBytes bounds the chunks that wait to be put or are; 0: 64 MiB.
	QueueBytes uint64
	// ResetCluster: a reset removes the namespace's objects, whoever uses them.
	ResetCluster bool
	// Notes keep the removals that are under way; nil: they are forgotten with this
	// process.
	Notes Notes
	// KnownChunks is of how many chunks it is remembered whether they are there; 0:
	// 262144.
	KnownChunks int
	// Events: somebody calls Hear and Linked with the events of the cluster's master. Those
	// of EventTenant's objects count.
	Events      bool
	EventTenant string
	// ToldChunks is of how many chunks it is remembered what events have told; 0: 262144.
	ToldChunks int
	// Asked, PutTook and GetTook, if not nil, are told the seconds that a call took.
	Asked, PutTook, GetTook func(time.Duration)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	Log *slog.Logger
}

const (
	defaultAbsent = time.Second
	defaultQueue  = 64 << 20
	defaultKnown  = 1 << 18
	// maxWaiting bounds the queues, besides their bytes.
	maxWaiting = 1 << 14
	// putters and getters are no more than the side process has lanes of the kind.
	// Mooncake's calls wait for their bytes by looking all the time, each on a core that
	// those who move the bytes could have, and one thread moves all of them: one call
	// that is under way while the next begins is enough.
	putters = 2
	getters = 2
	// putBatchBytes is how much of what waits one call takes, and leastGetBytes how much
	// a get takes in any case: few large ones are far faster than many small ones.
	putBatchBytes = 32 << 20
	leastGetBytes = 64 << 20
	// gatherPause is how long a get waits to see whether more comes, gatherPauses times
	// at most.
	gatherPause  = 100 * time.Microsecond
	gatherPauses = 5
	// askers is how many calls of one question are under way at a time, as many as
	// the side process has lanes for them: the master answers one while the process
	// takes the keys of the other apart.
	askers = 2
	// sparseKeys is how many keys one call of a sparse question asks for, about.
	sparseKeys = 1024
	// askLimit is how long a question may take before the cluster counts as silent.
	askLimit = 2 * time.Second
	// healInterval is how often a cluster that does not answer is looked at.
	healInterval = 100 * time.Millisecond
	// watchInterval is how often one that does is asked, whether anybody wants to know
	// something or not; often enough that its lease does not end.
	watchInterval = 2 * time.Second
)

func (o *Options) setDefaults() {
	if o.Lease <= 0 {
		o.Lease = mooncake.DefaultLease
	}
	if o.Absent <= 0 {
		o.Absent = defaultAbsent
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = defaultQueue
	}
	if o.KnownChunks == 0 {
		o.KnownChunks = defaultKnown
	}
	if o.ToldChunks == 0 {
		o.ToldChunks = defaultKnown
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	for _, f := range []*func(time.Duration){&o.Asked, &o.PutTook, &o.GetTook} {
		if *f == nil {
			*f = func(time.Duration) {}
		}
	}
}
