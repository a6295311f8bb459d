package level

import (
	"math/bits"
	"strings"
	"time"
)

const (
	// trustMost is the longest that an event is relied on, and trustLeast the shortest.
	trustMost  = 10 * time.Minute
	trustLeast = 5 * time.Second
	// trustGrows is after what time without a contradiction it is relied on twice as long.
	trustGrows = time.Minute
	// lateMost is how much later than an answer that knows of a removal its event may come.
	lateMost = 250 * time.Millisecond
	// crossMost is how long an answer may be on its way that a removal here makes void.
	crossMost = time.Minute
	// maxDoubts is of how many chunks an event may be late; with more there is none to come.
	maxDoubts = 64
)

// A chunk's verdicts in told; readers know present only.
const (
	// partial: of some shards nobody has told.
	partial = concluded
	// removed: of all, or of some shards it was told that they are removed.
	removed = void
)

// told is what the cluster's events have said, in fixed memory: of what does not fit
// nothing is known. It is as known is, but for what it takes to know a chunk by its
// shards.
//
// Events are a hint, as answers are. A master tells what is stored and what is removed by
// somebody's wish. That it has evicted, or that a storage node is gone, it may not tell
// (the one of the wheel 0.3.14 does not): so an event is relied on for a while only, and
// when the cluster does not have what events have told of, and no event of its removal
// comes either, all that they have told is forgotten, and what they tell next is relied
// on for half as long as that was told before. A cluster evicts what is oldest, so that
// this is shorter than what it keeps. It grows again with time.
//
// It is pure.
//
// REQUIRES: who calls its methods but find has its lock.
type told struct {
	*known
	pieces [][lineEntries]pieces
	// sinceMS is when events began to be heard without a gap: answers to what was asked
	// before may be older than something that was not heard.
	sinceMS int64
	// trustMS is for how long an event was relied on at trustAtMS.
	trustMS, trustAtMS int64
	// doubts are chunks that were told of and are not there, by digest.
	doubts map[uint64]doubt
}

// doubt is when it is certain that what was told of a chunk was wrong, and how long
// before it had been told.
type doubt struct{ dueMS, ageMS int64 }

// pieces are the shards of a chunk by where they are: in memory, on a disk.
type pieces struct {
	at      [2]uint64
	heardMS int64
}

// placeOf is the place of a medium; -1: one that nobody knows.
func placeOf(medium string) int {
	switch {
	case strings.EqualFold(medium, "cpu"):
		return 0
	case strings.EqualFold(medium, "disk"):
		return 1
	}
	return -1
}

// newTold returns a memory of so many chunks, about. late is by how much later than now
// somebody may find what he was told.
func newTold(chunks int, late time.Duration) *told {
	k := newKnown(chunks, trustMost+late)
	return &told{known: k, pieces: make([][lineEntries]pieces, len(k.lines)), trustMS: trustMost.Milliseconds(), doubts: map[uint64]doubt{}}
}

// trust is how long an event of now is relied on.
func (t *told) trust(nowMS int64) int64 {
	for t.trustMS < trustMost.Milliseconds() && nowMS-t.trustAtMS >= trustGrows.Milliseconds() {
		t.trustMS, t.trustAtMS = min(2*t.trustMS, trustMost.Milliseconds()), t.trustAtMS+trustGrows.Milliseconds()
	}
	return t.trustMS
}

// entry returns where a chunk is noted, and its verdict; ok is false when it is not.
func (t *told) entry(digest uint64, nowMS int64) (p *pieces, said verdict, ok bool) {
	line, i, ok := t.slotLocked(digest, nowMS)
	p = &t.pieces[line][i]
	if ok {
		said, ok = t.find(digest, nowMS)
	}
	return p, said, ok
}

// set notes a chunk's verdict.
func (t *told) set(digest uint64, p *pieces, said verdict, nowMS int64) {
	p.heardMS = nowMS
	t.putLocked(digest, said, nowMS, nowMS+t.trust(nowMS))
}

// stored notes that a shard of a chunk of so many is at a place.
func (t *told) stored(digest uint64, shard, shards, place int, nowMS int64) {
	p, said, ok := t.entry(digest, nowMS)
	if !ok {
		*p = pieces{}
	}
	if place >= 0 {
		p.at[place] |= 1 << shard
	}
	switch {
	case bits.OnesCount64(p.at[0]|p.at[1]) == shards:
		said = present
	case !ok:
		said = partial
	}
	t.set(digest, p, said, nowMS)
}

// removed notes that a shard is not at a place any more. gone: nor at another one, as far
// as was told. A chunk that was not told of is noted, too: an answer that is on its way
// may be older.
func (t *told) removed(digest uint64, shard, place int, nowMS int64) (gone bool) {
	p, said, ok := t.entry(digest, nowMS)
	if !ok {
		*p = pieces{}
	}
	here := place >= 0 && p.at[place]&(1<<shard) != 0
	if here {
		p.at[place] &^= 1 << shard
	}
	gone = (p.at[0]|p.at[1])&(1<<shard) == 0
	if gone {
		said = removed
		delete(t.doubts, digest)
	}
	t.set(digest, p, said, nowMS)
	return gone && here
}

// answered notes, with keep, that the cluster has a chunk, by an answer to a question that
// was asked then. False: it was told later that it is removed.
func (t *told) answered(digest uint64, askedMS, nowMS int64, keep bool) bool {
	p, said, ok := t.entry(digest, nowMS)
	if ok && said == removed && p.heardMS >= askedMS {
		return false
	}
	if !keep || askedMS <= t.sinceMS {
		return true
	}
	if !ok || said == removed {
		*p = pieces{}
	}
	t.set(digest, p, present, nowMS)
	return true
}

// missed notes that the cluster does not have a chunk, by an answer to a question that
// was asked then. stored: it was told later that it is stored. A chunk that was told of
// before is in doubt, and is not told of any more.
func (t *told) missed(digest uint64, askedMS, nowMS int64) (stored bool) {
	p, said, ok := t.entry(digest, nowMS)
	switch {
	case !ok || said != present:
		return false
	case p.heardMS >= askedMS:
		return true
	}
	if _, doubted := t.doubts[digest]; !doubted { // else it was told of again, and does not get more time
		t.doubts[digest] = doubt{dueMS: nowMS + lateMost.Milliseconds(), ageMS: nowMS - p.heardMS}
	}
	t.void(digest, nowMS)
	return false
}

// contradicted tells whether what events have told has turned out to be wrong, and
// forgets all of it then.
func (t *told) contradicted(nowMS int64) bool {
	many := len(t.doubts) > maxDoubts
	wrong, age := many, trustMost.Milliseconds()
	for _, d := range t.doubts {
		if many || d.dueMS <= nowMS {
			wrong, age = true, min(age, d.ageMS)
		}
	}
	if wrong {
		t.forgetAll(nowMS)
		t.trustMS, t.trustAtMS = max(min(t.trust(nowMS), age/2), trustLeast.Milliseconds()), nowMS
	}
	return wrong
}

// forgetAll forgets what was told before.
func (t *told) forgetAll(nowMS int64) {
	t.forgetLocked()
	clear(t.doubts)
	t.sinceMS = nowMS
}

// void forgets a chunk: neither what was told of it counts, nor an answer to what was
// asked before now.
func (t *told) void(digest uint64, nowMS int64) {
	p, _, _ := t.entry(digest, nowMS)
	*p = pieces{heardMS: nowMS}
	t.putLocked(digest, removed, nowMS, nowMS+crossMost.Milliseconds())
}
