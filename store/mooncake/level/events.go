package level

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Oblivion says why what events have told was forgotten.
type Oblivion uint8

// The reasons, in the order of EventStats.Forgotten.
const (
	// ForgottenLink: the connection was lost, and nobody knows what was told meanwhile.
	ForgottenLink Oblivion = iota
	// ForgottenGap: messages are missing.
	ForgottenGap
	// ForgottenRestart: another master tells.
	ForgottenRestart
	// ForgottenMalformed: a message could not be read.
	ForgottenMalformed
	// ForgottenCleared: all is gone.
	ForgottenCleared
	// ForgottenContradicted: the cluster does not have what was told of, and nobody told
	// that it was removed.
	ForgottenContradicted
	// ForgottenEra: the cluster began anew.
	ForgottenEra
	oblivions
)

// Oblivions is the number of reasons.
const Oblivions = oblivions

// String returns the reason's name in metrics.
func (o Oblivion) String() string {
	return [oblivions + 1]string{"link", "gap", "restart", "malformed", "cleared", "contradicted", "era", "unknown"}[min(o, oblivions)]
}

// EventStats counts what the cluster's events have told.
type EventStats struct {
	// Linked: there is a connection to who tells them.
	Linked bool
	// Stored and Removed were told of shards of this node's namespaces, Foreign events
	// of other objects, Keyless ones do not say of which.
	Stored, Removed, Foreign, Keyless uint64
	// Forgotten is how often what was told was forgotten.
	Forgotten [oblivions]uint64
	// Lookups knew something by events that they would have had to ask for.
	Lookups uint64
}

// sayPause is how long the log says nothing of a reason again.
const sayPause = time.Minute

// events is what Hear goes by.
type events struct {
	decoder *kvevents.Decoder
	stream  stream
	named   []mooncake.Named
	// heard: a message was, since the connection was made: what is stored or removed from
	// now on is told.
	heard   atomic.Bool
	lookups atomic.Uint64

	mu     sync.Mutex
	stats  EventStats
	saidAt [oblivions]time.Time // in the log
}

// Linked notes that the connection to who tells events was made, or lost.
//
// REQUIRES: Options.Events, and one call of Linked or Hear at a time.
func (l *Level) Linked(up bool) {
	l.events.heard.Store(false)
	l.events.stream.end()
	l.events.mu.Lock()
	l.events.stats.Linked = up
	l.events.mu.Unlock()
	if up {
		l.opts.Log.Info("the Mooncake cluster's KV events are followed")
		return
	}
	l.forgetTold(ForgottenLink)
}

// Hear takes a message of the cluster's events. It does not block.
//
// REQUIRES: as Linked.
func (l *Level) Hear(frames [][]byte) {
	e := &l.events
	m, err := kvevents.ParseLive(frames)
	if err != nil {
		e.stream.end() // which one it was nobody knows, nor what is missing before the next one
		e.heard.Store(false)
		l.forgetTold(ForgottenMalformed)
		return
	}
	switch e.stream.take(m.Seq) {
	case behindGap:
		l.forgetTold(ForgottenGap)
	case startedAnew:
		l.forgetTold(ForgottenRestart)
	case inOrder:
	}
	batch, _, err := e.decoder.Decode(m.Payload)
	if err != nil {
		l.forgetTold(ForgottenMalformed)
	}
	if batch == nil {
		return
	}
	if !e.heard.Load() {
		l.told.mu.Lock()
		l.told.sinceMS = l.nowMS()
		l.told.mu.Unlock()
		e.heard.Store(true)
	}
	for _, event := range batch.Events {
		switch event := event.(type) {
		case *kvevents.BlockStored:
			l.hearOf(event.Tenant, event.ObjectKey, event.Medium, true)
		case *kvevents.BlockRemoved:
			l.hearOf(event.Tenant, event.ObjectKey, event.Medium, false)
		case *kvevents.AllBlocksCleared:
			l.forgetTold(ForgottenCleared)
			l.known.forget()
		}
	}
}

// hearOf takes an event of one object.
func (l *Level) hearOf(tenant string, key []byte, medium string, stored bool) {
	e := &l.events
	var count *uint64
	defer func() {
		e.mu.Lock()
		*count++
		e.mu.Unlock()
	}()
	switch {
	case len(key) == 0:
		count = &e.stats.Keyless
		return
	case len(key) > mooncake.MaxKeyBytes || tenant != "" && tenant != l.opts.EventTenant:
		count = &e.stats.Foreign
		return
	}
	// Whoever has a removal begun drops what was told under this lock, so that it is not
	// told anew by what was on its way.
	l.told.mu.Lock()
	defer l.told.mu.Unlock()
	e.named = l.client.Named(e.named[:0], key)
	count = &e.stats.Foreign
	for i := range e.named {
		s := l.spaceNamed(e.named[i].Namespace)
		if s == nil {
			continue
		}
		if stored {
			count = &e.stats.Stored
		} else {
			count = &e.stats.Removed
		}
		l.applyLocked(s, &e.named[i], placeOf(medium), stored)
	}
}

// applyLocked notes what an event tells of a shard.
func (l *Level) applyLocked(s *space, n *mooncake.Named, place int, stored bool) {
	now, digest := l.nowMS(), s.digest(n.Group, &n.Hash)
	switch {
	case stored && n.Denied: // it is being removed, and not to be found
		l.told.void(digest, now)
	case stored:
		l.told.stored(digest, int(n.Shard), s.shards(n.Group), place, now)
		if said, _ := l.told.find(digest, now); said == present {
			l.known.dropAbsent(digest) // who was told so before would be offered nothing
		}
	default:
		gone := l.told.removed(digest, int(n.Shard), place, now)
		l.known.dropThere(digest)
		if gone {
			l.note(s, n.Group, &n.Hash, absent)
		}
	}
}

// spaceNamed returns the space of an open namespace of the client's, nil if it is not
// used, or not any more.
func (l *Level) spaceNamed(n store.Namespace) *space {
	digest, ok := l.digests.Load(n.ID)
	if !ok {
		return nil
	}
	if s := l.spaceOf(digest.([32]byte)); s != nil && s.name == n { //nolint:forcetypeassert // setSpace stores no others
		return s
	}
	return nil
}

// noteThere remembers of a chunk that it is there, by a call that began then, unless it
// was told since that it is removed.
func (l *Level) noteThere(s *space, group uint32, hash *kv.Hash, said verdict, begun time.Time) {
	if l.told != nil {
		// What makes the answer void comes before it is noted, or after it.
		l.told.mu.Lock()
		defer l.told.mu.Unlock()
		keep := said == present && l.events.heard.Load()
		if !l.told.answered(s.digest(group, hash), l.msOf(begun), l.nowMS(), keep) {
			return
		}
	}
	l.noteAnswer(s, group, hash, said, begun)
}

// noteMissed remembers of a chunk that it is not there, by a call that began then, unless
// it was told since that it is stored.
func (l *Level) noteMissed(s *space, group uint32, hash *kv.Hash, begun time.Time) {
	if l.told == nil {
		l.noteAnswer(s, group, hash, absent, begun)
		return
	}
	l.told.mu.Lock()
	if !l.missedLocked(s, group, hash, begun) {
		l.noteAnswer(s, group, hash, absent, begun)
	}
	l.told.mu.Unlock()
	l.judgeTold()
}

// missedTold compares what events have told with a call that began then and did not find a
// chunk.
func (l *Level) missedTold(s *space, group uint32, hash *kv.Hash, begun time.Time) {
	if l.told == nil {
		return
	}
	l.told.mu.Lock()
	l.missedLocked(s, group, hash, begun)
	l.told.mu.Unlock()
	l.judgeTold()
}

// missedLocked is missedTold, with the lock of told. stored: events have told since that the
// chunk is stored.
func (l *Level) missedLocked(s *space, group uint32, hash *kv.Hash, begun time.Time) (stored bool) {
	digest := s.digest(group, hash)
	// A chunk that is being removed with all of its namespace is denied: that it was told of
	// is no fault.
	if said, _ := l.told.find(digest, l.nowMS()); said == present && (s.replaced.Load() || !l.client.Clean(s.name)) {
		return false
	}
	stored = l.told.missed(digest, l.msOf(begun), l.nowMS())
	if len(l.told.doubts) > 0 {
		select {
		case l.doubted <- struct{}{}:
		default: // it is known already
		}
	}
	return stored
}

// judgeTold forgets what events have told when it has turned out to be wrong.
func (l *Level) judgeTold() {
	if l.told == nil {
		return
	}
	l.told.mu.Lock()
	contradicted := l.told.contradicted(l.nowMS())
	l.told.mu.Unlock()
	if contradicted {
		l.countForgotten(ForgottenContradicted)
	}
}

// judge judges when the events that could explain what is doubted have had their time.
func (l *Level) judge(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.doubted:
		}
		timer := time.NewTimer(lateMost)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		l.judgeTold()
	}
}

// void takes a chunk for absent, as long as one that is not there. What events have told of
// it, and answers that are on their way, count no more.
func (l *Level) void(s *space, group uint32, hash *kv.Hash) {
	if l.told != nil {
		l.told.mu.Lock()
		defer l.told.mu.Unlock()
		l.told.void(s.digest(group, hash), l.nowMS())
	}
	l.note(s, group, hash, void)
}

// toldSince tells whether all that events have told was told after a time, by who lives
// now: a master that dies ends its connections.
func (l *Level) toldSince(ms int64) bool {
	if l.told == nil {
		return true
	}
	l.told.mu.Lock()
	defer l.told.mu.Unlock()
	return l.told.sinceMS > ms
}

// forgetTold forgets all that events have told.
func (l *Level) forgetTold(why Oblivion) {
	if l.told != nil {
		l.told.mu.Lock()
		l.told.forgetAll(l.nowMS())
		l.told.mu.Unlock()
		l.countForgotten(why)
	}
}

// countForgotten counts that it was forgotten, and says so now and then.
func (l *Level) countForgotten(why Oblivion) {
	e := &l.events
	now := l.opts.Now()
	e.mu.Lock()
	e.stats.Forgotten[why]++
	say := e.saidAt[why].IsZero() || now.Sub(e.saidAt[why]) >= sayPause
	if say {
		e.saidAt[why] = now
	}
	e.mu.Unlock()
	if say {
		l.opts.Log.Warn("what the Mooncake cluster's KV events have told is forgotten; lookups ask the cluster again", "reason", why)
	}
}

// EventsProblem says why the cluster's events are not heard, "" when they are, or are not
// asked for.
func (l *Level) EventsProblem() string {
	if l.told == nil || l.eventStats().Linked {
		return ""
	}
	return "there is no connection to who tells them"
}

func (l *Level) eventStats() EventStats {
	l.events.mu.Lock()
	defer l.events.mu.Unlock()
	s := l.events.stats
	s.Lookups = l.events.lookups.Load()
	return s
}
