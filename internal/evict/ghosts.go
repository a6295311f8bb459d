package evict

import "math/bits"

// ghosts remember chunks that were evicted: when they were last used, how often,
// and their kind. Eight bytes each, in sets of ghostWays; a set that is full
// forgets what was evicted first. All are forgotten ghostSlots after their
// eviction, so that of a chain that is not asked for nothing stays rather than
// this or that chunk. One question in 2^28 is answered for another key, which
// costs a wrong count.
type ghosts struct {
	sets  uint64
	slots []ghost
}

const (
	ghostWays  = 16
	ghostSlots = 4 * slotsPerTurnover
)

// ghost is, from the high bits down: 32 of the key, 12 of the slot of the last
// use and 12 of that of the eviction, 5 for the kind, 3 for the uses, counted up
// to 7. Zero is none.
type ghost uint64

const (
	ghostSlotBits = 12
	ghostSlotMask = 1<<ghostSlotBits - 1
	ghostMaxUses  = 7
)

func newGhost(key uint64, last, evicted uint32, kind, uses uint8) ghost {
	return ghost(uint64(max(uint32(key), 1))<<32 | uint64(last&ghostSlotMask)<<20 | uint64(evicted&ghostSlotMask)<<8 |
		uint64(kind)<<3 | uint64(min(uses, ghostMaxUses)))
}

func (g ghost) kind() int   { return int(g >> 3 & 31) }
func (g ghost) uses() uint8 { return uint8(g & ghostMaxUses) }

// age is how many slots ago its last use was.
func (g ghost) age(now uint32) uint32 { return (now - uint32(g>>20)) & ghostSlotMask }

// gone is how many slots ago it was evicted.
func (g ghost) gone(now uint32) uint32 { return (now - uint32(g>>8)) & ghostSlotMask }

func newGhosts(n int) ghosts {
	sets := max((n+ghostWays-1)/ghostWays, 1)
	return ghosts{sets: uint64(sets), slots: make([]ghost, sets*ghostWays)}
}

// set returns where a key may be. The set comes from the key's high bits, what
// is kept of it are the low ones.
func (g *ghosts) set(key uint64) []ghost {
	at, _ := bits.Mul64(key, g.sets)
	return g.slots[at*ghostWays:][:ghostWays]
}

// put remembers a chunk that is evicted now.
func (g *ghosts) put(key uint64, x ghost, now uint32) {
	ways := g.set(key)
	first, age := 0, uint32(0)
	for i, y := range ways {
		if y == 0 || y>>32 == x>>32 {
			ways[i] = x
			return
		}
		if a := y.gone(now); a >= age {
			first, age = i, a
		}
	}
	ways[first] = x
}

// take recalls a chunk and forgets it.
func (g *ghosts) take(key uint64, now uint32) (ghost, bool) {
	ways := g.set(key)
	tag := ghost(max(uint32(key), 1))
	for i, x := range ways {
		if x>>32 == tag && x != 0 {
			ways[i] = 0
			return x, x.gone(now) <= ghostSlots
		}
	}
	return 0, false
}
