package level

import (
	"context"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Level is the cluster below a node's store. Its methods but Run, Ask and Reset do
// not wait for anything.
type Level struct {
	client *mooncake.Client
	opts   Options
	known  *known
	// told is what events have said; nil: nobody tells.
	told *told
	// doubted: there is a doubt in told that is to be judged.
	doubted chan struct{}
	events  events
	// usable is false while the cluster does not answer, as far as Run has seen.
	usable atomic.Bool
	// turns counts sparse questions, see turnOf.
	turns [256]atomic.Uint32
	// eras counts how often it began to be usable.
	eras atomic.Uint32
	// beatMS is when the cluster was last seen to have what it had before.
	beatMS atomic.Int64
	// spaces are the namespaces by digest; values are replaced, not changed.
	spaces sync.Map // [32]byte -> *space
	// digests are the namespaces' by the client's number of them.
	digests sync.Map // store.NamespaceID -> [32]byte

	mu       sync.Mutex
	puts     queue[*putting]
	gets     queue[*fetching]
	renewals queue[*renewing]
	seeds    uint64
	ended    bool // Run is over
	stats    Stats

	begun time.Time // what is known is timed from here

	ledger ledger

	asking sync.WaitGroup // questions under way
	// underWay are those by what they ask; under mu.
	underWay map[uint64]*asking
	// getRate is how many bytes a second the last large get brought.
	getRate atomic.Uint64
}

// space is a namespace as it is now: another one after a reset.
type space struct {
	spec *kv.NamespaceSpec
	name store.Namespace
	// seed is in the digests of its chunks, so that what was known before a reset is
	// known no more.
	seed uint64
	// left: the cluster is not used for it.
	left bool
	// exactUntil is until when all keys are asked for, see sparse.go.
	exactUntil atomic.Int64
	replaced   atomic.Bool // by another
}

// New returns a level, which does nothing before Run.
func New(opts Options) *Level {
	opts.setDefaults()
	l := &Level{
		client: opts.Client, opts: opts, known: newKnown(opts.KnownChunks, max(opts.Lease, opts.Absent)), begun: opts.Now(),
		puts: newQueue[*putting](putters), gets: newQueue[*fetching](getters), renewals: newQueue[*renewing](1), underWay: map[uint64]*asking{}, doubted: make(chan struct{}, 1),
	}
	if opts.Events {
		l.told = newTold(opts.ToldChunks, opts.Lease)
		l.events.decoder = kvevents.NewDecoder()
	}
	l.readNotes()
	return l
}

// digest names a chunk to what is known.
func (s *space) digest(group uint32, hash *kv.Hash) uint64 {
	return digestOf(s.scope(group), binary.LittleEndian.Uint64(hash[:8]), binary.LittleEndian.Uint64(hash[8:16]))
}

// scope is what the digests of a group's chunks have in common.
func (s *space) scope(group uint32) uint64 {
	return s.seed ^ bits.RotateLeft64((uint64(group)+1)*scramble, 17)
}

// digestOf is made of a hash's first words.
func digestOf(scope, first, second uint64) uint64 {
	return max(first^bits.RotateLeft64(second, 32)^scope, 1)
}

// shards is how many shards a group's chunks have, 0 for a group that there is not.
func (s *space) shards(group uint32) int {
	if int(group) >= len(s.spec.Groups) {
		return 0
	}
	return s.spec.Groups[group].Shards
}

// chunkBytes is the length of all shards of a group's chunk.
func (s *space) chunkBytes(group uint32) uint64 {
	g := &s.spec.Groups[group]
	return uint64(g.ShardBytes) * uint64(g.Shards)
}

// Open implements embedded.Cluster.
func (l *Level) Open(spec *kv.NamespaceSpec, soiled bool) {
	digest := spec.Digest()
	if _, known := l.spaces.Load(digest); known {
		return
	}
	s := &space{spec: spec, left: soiled && !l.opts.ResetCluster}
	var err error
	if s.name, err = l.client.OpenNamespace(context.Background(), spec); err != nil {
		l.opts.Log.Warn("a model's cache is not shared with the Mooncake cluster", "model", spec.Model, "error", err)
		s.left = true
	}
	switch {
	case err != nil || !soiled:
	case s.left:
		l.tellLeft(s)
	default:
		if err = l.client.Soil(s.name); err != nil {
			s.left = true
			l.opts.Log.Warn("what the Mooncake cluster has of a model from before a reset can't be removed", "model", spec.Model, "error", err)
		}
	}
	if err == nil {
		l.resume(s, digest)
	}
	l.setSpace(digest, s)
}

func (l *Level) tellLeft(s *space) {
	l.opts.Log.Warn("the Mooncake cluster is not used for a model that was reset: what it has can't be told from what is new; mooncake_reset cluster would remove it there",
		"model", s.spec.Model)
}

// setSpace makes a space the one of a namespace.
func (l *Level) setSpace(digest [32]byte, s *space) {
	l.plant(digest, s)
	l.spaces.Store(digest, s)
	if s.name != (store.Namespace{}) {
		l.digests.Store(s.name.ID, digest)
	}
}

// replaceSpace does so if old is the one yet.
func (l *Level) replaceSpace(digest [32]byte, old, s *space) {
	l.plant(digest, s)
	if l.spaces.CompareAndSwap(digest, old, s) {
		old.replaced.Store(true)
	}
}

// plant gives a space its seed.
func (l *Level) plant(digest [32]byte, s *space) {
	l.mu.Lock()
	l.seeds++
	s.seed = l.seeds * scramble
	for i := range 8 {
		s.seed ^= uint64(digest[i]) << (8 * i)
	}
	l.mu.Unlock()
}

// spaceOf returns a namespace's space, nil where the cluster is not used for it.
func (l *Level) spaceOf(digest [32]byte) *space {
	v, _ := l.spaces.Load(digest)
	s, ok := v.(*space)
	if !ok || s.left {
		return nil
	}
	return s
}

// Takes implements embedded.Cluster.
func (l *Level) Takes(digest [32]byte) bool { return l.spaceOf(digest) != nil }

// Clean implements embedded.Cluster.
func (l *Level) Clean(digest [32]byte) bool {
	s := l.spaceOf(digest)
	return s != nil && l.client.Clean(s.name)
}

// inService tells whether the cluster is asked at all.
func (l *Level) inService() bool { return l.usable.Load() }

// Era implements embedded.Cluster.
func (l *Level) Era() uint8 {
	if !l.inService() {
		return 0
	}
	return uint8((l.eras.Load()-1)%255 + 1)
}

// nowMS does not jump with the wall clock.
func (l *Level) nowMS() int64 { return l.msOf(l.opts.Now()) }

func (l *Level) msOf(t time.Time) int64 { return t.Sub(l.begun).Milliseconds() }

// note remembers of a chunk whether it is there.
func (l *Level) note(s *space, group uint32, hash *kv.Hash, said verdict) {
	now := l.nowMS()
	l.known.put(s.digest(group, hash), said, now, now+l.keepOf(said))
}

// noteAnswer is note, of what was said by a call that began then, unless the chunk is void
// since.
func (l *Level) noteAnswer(s *space, group uint32, hash *kv.Hash, said verdict, begun time.Time) {
	now := l.nowMS()
	l.known.answer(s.digest(group, hash), said, l.msOf(begun), now, now+l.keepOf(said), l.keepOf(void))
}

// keepOf returns for how many milliseconds something is known.
func (l *Level) keepOf(said verdict) int64 {
	if said.there() {
		return l.opts.Lease.Milliseconds() / 2
	}
	return l.opts.Absent.Milliseconds()
}

// Look implements embedded.Lower. What was concluded is not there to one who would give
// up a copy for it.
func (l *Level) Look(key *disk.Key) (disk.Found, bool) {
	found, said := l.look(key, 0)
	return found, said == present
}

// Offers implements embedded.Lower: a lookup was told so before, and the lease that
// it stands for is twice as long as it is told.
func (l *Level) Offers(key *disk.Key) (disk.Found, bool) {
	found, said := l.look(key, l.opts.Lease/4)
	return found, said.there()
}

func (l *Level) look(key *disk.Key, late time.Duration) (disk.Found, verdict) {
	s := l.spaceOf(key.Namespace)
	if s == nil || !l.inService() || int(key.Group) >= len(s.spec.Groups) {
		return disk.Found{}, absent
	}
	digest, now := s.digest(uint32(key.Group), &key.Hash), l.nowMS()-late.Milliseconds()
	said, ok := l.known.find(digest, now)
	if !ok && l.told != nil {
		if told, _ := l.told.find(digest, now); told == present { // without a lease
			said = concluded
		}
	}
	return disk.Found{Bytes: s.chunkBytes(uint32(key.Group))}, said
}

// MissOnce implements embedded.Lower: it is taken for absent as long as one that
// is not there.
func (l *Level) MissOnce(key *disk.Key) {
	if s := l.spaceOf(key.Namespace); s != nil {
		l.void(s, uint32(key.Group), &key.Hash)
	}
}

// Touch implements embedded.Lower. The master counts what it is asked for as used.
func (l *Level) Touch(*disk.Key) {}

// Deadline implements embedded.Lower: the cluster knows no time to live.
func (l *Level) Deadline(time.Duration) uint32 { return 0 }

// Left implements embedded.Lower.
func (l *Level) Left(uint32) time.Duration { return 0 }
