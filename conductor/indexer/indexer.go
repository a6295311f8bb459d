package indexer

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/feed"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/conductor/registry"
)

// Options of an indexer.
type Options struct {
	Transport feed.Transport
	// MaxBytes bounds the memory of the index, 0 for no bound; MaxServices is how many
	// streams are followed at most.
	MaxBytes    int64
	MaxServices int
	// Seed of the index's digests, where HasSeed; else it is the snapshot's, or drawn.
	Seed    uint64
	HasSeed bool
	// Keep is where its snapshots are, for Open and Run.
	Keep Keeping
	// Times of the feeds.
	Times feed.Times
	Log   *slog.Logger
}

// unready is how long after its registration a service of the configuration, or of a
// snapshot, may keep the index from being asked.
const unready = 30 * time.Second

// Indexer is the index with its streams. It is safe for concurrent use.
type Indexer struct {
	opts     Options
	seed     uint64
	index    *prefixindex.Index
	registry *registry.Registry
	// gate is shared by feeds while they apply a message, and had alone by who looks at all
	// of them at one moment.
	gate sync.RWMutex

	mu      sync.Mutex // guards all below up to closed; taken before the gate
	members map[contract.ServiceKey]*member
	// left and leavers as in contract.Stats.
	left    contract.Status
	leavers uint64
	closed  bool
	// directory is what queries look at, and who is listed.
	directory atomic.Pointer[directory]

	counts struct{ queries, asked, matched atomic.Uint64 }
	kept   kept
}

// member is a service that is followed.
type member struct {
	service contract.Service
	feed    *feed.Feed
	source  *prefixindex.Source
	// ways are contract.Ways; restored: it comes from a snapshot.
	ways     atomic.Uint32
	restored bool
	since    time.Time
	cancel   context.CancelFunc
	done     chan struct{}
}

// New makes an indexer that knows nothing; see Restore.
func New(opts *Options) *Indexer {
	x := &Indexer{opts: *opts, seed: opts.Seed, members: map[contract.ServiceKey]*member{}, registry: registry.New(opts.MaxServices)}
	x.kept.began = time.Now()
	if !opts.HasSeed {
		x.seed = rand.Uint64()
	}
	x.index = prefixindex.New(prefixindex.Options{MaxBytes: opts.MaxBytes, Seed: x.seed})
	x.directory.Store(&directory{})
	return x
}

// came says how a member came to be, besides what is known of it.
func (m *member) came(how contract.Ways) { m.ways.Or(uint32(how)) }

func (m *member) is(how contract.Ways) bool { return contract.Ways(m.ways.Load())&how != 0 } //nolint:gosec // they are Ways

// Register begins to follow a service; it does not wait for the publisher.
func (x *Indexer) Register(ctx context.Context, service contract.Service) (contract.Registered, error) {
	return x.RegisterAs(ctx, contract.Called, service)
}

// RegisterAs is Register of a service that came in that way. Unready waits for those of the
// configuration.
func (x *Indexer) RegisterAs(ctx context.Context, how contract.Ways, service contract.Service) (contract.Registered, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return contract.Registered{}, fmt.Errorf("indexer: %w: it is closed", contract.ErrLimit)
	}
	service, registered, err := x.registry.Add(service)
	if err != nil {
		return registered, err
	}
	if registered.Existed {
		if m := x.members[service.Key()]; m != nil {
			m.came(how)
		}
		return registered, nil
	}
	m := &member{service: service}
	m.came(how)
	x.startLocked(ctx, m, nil)
	x.fileLocked()
	return registered, nil
}

// startLocked has a member's feed run, beyond the end of the call that ctx is of. With a mark
// its source has what was known there.
func (x *Indexer) startLocked(ctx context.Context, m *member, mark *feed.Mark) {
	if m.source == nil {
		m.source = x.index.Open(x.originLocked(&m.service))
	}
	m.since, m.done = time.Now(), make(chan struct{})
	m.feed = feed.New(&feed.Config{
		Service: m.service, Source: m.source, Transport: x.opts.Transport, Gate: &x.gate, Resume: mark, Log: x.opts.Log, Times: x.opts.Times,
	})
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	x.members[m.service.Key()] = m
	go func() {
		defer close(m.done)
		m.feed.Run(ctx)
	}()
}

// originLocked says whose a service's blocks are.
func (x *Indexer) originLocked(s *contract.Service) prefixindex.Origin {
	o := prefixindex.Origin{Tenant: s.Tenant, Model: s.Model, Salt: s.AdditionalSalt, LoRA: s.LoRA, Instance: s.Instance, Rank: s.Rank}
	if s.Type == contract.TypeMooncake {
		o.Rank, o.Everyone = prefixindex.Shared, s.Rank != prefixindex.Shared
	}
	return o
}

// Unregister ends a service and forgets all that it told.
func (x *Indexer) Unregister(_ context.Context, key contract.ServiceKey) error {
	if key.Tenant == "" {
		key.Tenant = prefixindex.DefaultTenant
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.registry.Remove(key); err != nil {
		return err
	}
	m := x.members[key]
	m.cancel()
	<-m.done
	// It counts no more: at one moment it is no member any more, and is counted with who left.
	last := m.feed.Status()
	x.left.Add(&last)
	x.leavers++
	delete(x.members, key)
	x.fileLocked()
	x.forget(m)
	return nil
}

// forget forgets what a member told whose feed has ended.
func (x *Indexer) forget(m *member) {
	x.gate.RLock()
	defer x.gate.RUnlock()
	m.source.Close()
}

// Services are all that are registered, in the order of their keys.
func (x *Indexer) Services() []contract.Status {
	members := x.list()
	all := make([]contract.Status, 0, len(members))
	for _, m := range members {
		s := m.feed.Status()
		s.Ways = contract.Ways(m.ways.Load()) //nolint:gosec // they are Ways
		s.Warnings = append(s.Warnings, x.registry.Warnings(m.service.Key())...)
		all = append(all, s)
	}
	return all
}

// list returns the members in the order of their keys. It waits for nobody: a snapshot has the
// lock for long.
func (x *Indexer) list() []*member { return x.directory.Load().members }

// Unready says why the index is not to be asked yet, nil when it is: a service of the
// configuration, or of the snapshot that it began with, has not been heard. Those that are
// not heard for a while are not waited for.
func (x *Indexer) Unready() (why []string) {
	for _, m := range x.list() {
		s := m.feed.Summary()
		if (m.is(contract.Configured) || m.restored) && time.Since(m.since) < unready && s.State == contract.Connecting {
			why = append(why, m.service.Key().String()+" has not answered yet")
		}
	}
	return why
}

// Stats are the index's figures.
func (x *Indexer) Stats() contract.Stats {
	d := x.directory.Load()
	return contract.Stats{
		Left: d.left, Leavers: d.leavers,
		Blocks: x.index.Blocks(), Bytes: x.index.Bytes(), MaxBytes: x.opts.MaxBytes,
		Queries: x.counts.queries.Load(), TokensAsked: x.counts.asked.Load(), TokensMatched: x.counts.matched.Load(),
		Snapshots: x.kept.stats(&x.opts.Keep),
	}
}

// How often what was cleared is removed when nobody does it in passing, and how much at once.
const (
	sweepEvery = 200 * time.Millisecond
	sweepPages = 64
)

// Run does what is to be done from time to time, until ctx ends; then it ends all streams
// and writes the last snapshot.
func (x *Indexer) Run(ctx context.Context) error {
	sweeps := time.NewTicker(sweepEvery)
	defer sweeps.Stop()
	var snapshots <-chan time.Time
	if x.opts.Keep.Dir != "" && x.opts.Keep.Interval > 0 {
		ticker := time.NewTicker(x.opts.Keep.Interval)
		defer ticker.Stop()
		snapshots = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			x.Close()
			x.save()
			return nil
		case <-snapshots:
			x.save()
		case <-sweeps.C:
			x.index.Sweep(sweepPages)
		}
	}
}

// Close ends all streams and waits for them. What is known stays for a snapshot; no service
// can be registered any more.
func (x *Indexer) Close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for _, m := range x.members {
		m.cancel()
	}
	for _, m := range x.members {
		<-m.done
	}
}
