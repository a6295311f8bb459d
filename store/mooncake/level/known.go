package level

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// verdict is what is known of a chunk.
type verdict uint8

const (
	absent verdict = iota
	// present: it is there whole; somebody has said so of each shard.
	present
	// concluded: it is there if others say so of it, see sparse.go.
	concluded
	// void is absent, whatever is said of it by who was asked before that was noted.
	void
	// verdictBits hold a verdict.
	verdictBits = 2
)

// there tells whether a lookup may be told that the chunk is there.
func (v verdict) there() bool { return v == present || v == concluded }

// known remembers what was said of chunks, for a time each, in fixed memory: lines
// of a few entries, of which the one goes that is worth least. Readers take no
// lock. A chunk is known by 64 bits of its hash: taken for another it costs a load
// that fails, or a question that is not asked.
type known struct {
	lines []line
	shift int
	// keepMS is the longest that anything is known for; what seems to be longer is two
	// halves.
	keepMS int64

	mu sync.Mutex // of writers
}

// lineEntries fill a cache line.
const lineEntries = 4

type line [lineEntries]struct {
	// digest is the chunk's.
	digest atomic.Uint64
	// verdict is until when (in milliseconds, 0 for an empty entry) and the verdict in
	// the lowest bits, mixed with the digest, so that halves of two entries make none.
	verdict atomic.Uint64
}

// noted returns what an entry says of a chunk, and until when.
func (l *line) noted(i int, digest uint64) (said verdict, untilMS int64) {
	v := l[i].verdict.Load() ^ mixOf(digest)
	return verdict(v & (1<<verdictBits - 1)), int64(v >> verdictBits)
}

// newKnown returns a memory of so many chunks, about, and for no longer than keep.
func newKnown(chunks int, keep time.Duration) *known {
	lines := 1 << bits.Len(uint(max(chunks/lineEntries, 2)-1))
	return &known{lines: make([]line, lines), shift: 64 - bits.TrailingZeros(uint(lines)), keepMS: keep.Milliseconds()}
}

// scramble keeps the halves of different entries apart.
const scramble = 0x9E3779B97F4A7C15

func mixOf(digest uint64) uint64 { return bits.RotateLeft64(digest*scramble, 29) }

func (k *known) lineAt(digest uint64) int { return int((digest * scramble) >> k.shift) }

func (k *known) lineOf(digest uint64) *line { return &k.lines[k.lineAt(digest)] }

// find returns what is known of a chunk at a time; ok is false when nothing is.
func (k *known) find(digest uint64, nowMS int64) (said verdict, ok bool) {
	l := k.lineOf(digest)
	for i := range l {
		if l[i].digest.Load() != digest {
			continue
		}
		if said, until := l.noted(i, digest); until > nowMS && until-nowMS <= k.keepMS {
			return said, true
		}
	}
	return absent, false
}

// fetch brings what will be looked for into the cache.
func (k *known) fetch(digests []uint64) {
	for _, d := range digests {
		k.lineOf(d)[0].digest.Load()
	}
}

// forget forgets all.
func (k *known) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetLocked()
}

func (k *known) forgetLocked() {
	for i := range k.lines {
		for j := range k.lines[i] {
			k.dropLocked(i, j)
		}
	}
}

// put notes what is known of a chunk, until a time.
func (k *known) put(digest uint64, said verdict, nowMS, untilMS int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.putLocked(digest, said, nowMS, untilMS)
}

// answer notes what was said of a chunk by who was asked then, unless it is void since; void
// is noted for so long.
func (k *known) answer(digest uint64, said verdict, askedMS, nowMS, untilMS, voidMS int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if line, i, ok := k.slotLocked(digest, nowMS); ok {
		if said, until := k.lines[line].noted(i, digest); said == void && until-voidMS >= askedMS {
			return
		}
	}
	k.putLocked(digest, said, nowMS, untilMS)
}

func (k *known) putLocked(digest uint64, said verdict, nowMS, untilMS int64) {
	line, i, _ := k.slotLocked(digest, nowMS)
	v := uint64(untilMS)<<verdictBits | uint64(said)
	k.lines[line][i].digest.Store(digest)
	k.lines[line][i].verdict.Store(v ^ mixOf(digest))
}

// slotLocked returns where a chunk is noted, or, with ok false, is to be: in place of
// what is worth least.
func (k *known) slotLocked(digest uint64, nowMS int64) (line, i int, ok bool) {
	line = k.lineAt(digest)
	l, at, worst := &k.lines[line], 0, int64(1)<<62
	for i := range l {
		d := l[i].digest.Load()
		_, until := l.noted(i, d)
		if d == digest {
			return line, i, true
		}
		if until <= nowMS || l[i].verdict.Load() == 0 {
			until = 0
		}
		if until < worst {
			at, worst = i, until
		}
	}
	return line, at, false
}

// dropLocked forgets what is noted at a place.
func (k *known) dropLocked(line, i int) {
	k.lines[line][i].digest.Store(0)
	k.lines[line][i].verdict.Store(0)
}

// dropThere forgets a chunk that is said to be there.
func (k *known) dropThere(digest uint64) { k.dropIf(digest, true) }

// dropAbsent forgets that a chunk was not there, also where that holds no longer for lookups.
func (k *known) dropAbsent(digest uint64) { k.dropIf(digest, false) }

// dropIf forgets a chunk that is said to be there, or not to be.
func (k *known) dropIf(digest uint64, there bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if line, i, ok := k.slotLocked(digest, 0); ok {
		if said, _ := k.lines[line].noted(i, digest); said.there() == there {
			k.dropLocked(line, i)
		}
	}
}
