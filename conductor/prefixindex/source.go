package prefixindex

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Shared is the rank of a source that tells of a store which all ranks of an instance
// can load from.
const Shared = -1

// Origin is where events come from.
type Origin struct {
	// Tenant and Model whose blocks they are; an empty tenant is DefaultTenant.
	Tenant, Model string
	// Salt sets engines apart that call different blocks by the same hash.
	Salt string
	// LoRA is the adapter of blocks whose events name none.
	LoRA string
	// Instance and Rank are what answers name; Rank may be Shared.
	Instance string
	Rank     int
	// Everyone: the store, whose rank is Shared, is one that all instances can load from.
	Everyone bool
	// ReusesReported: the engine tells of blocks that a request reuses as it does of
	// new ones (vLLM's kv_cache_report_mode "full"), so that what begins at a prompt's
	// beginning and is held already is no further copy. It is also found out, see
	// Source.Apply.
	ReusesReported bool
}

// Source is a stream of events. It is not safe for concurrent use.
type Source struct {
	origin Origin
	index  *Index
	space  *space
	slot   int
	lanes  map[int]uint32 // by KV-cache group
	hasher hasher
	stats  Stats
	// miscounted: reuses may have been counted as copies, so that a removal takes all.
	miscounted bool
	// fresh: the batch's latest event of a full-attention group from a prompt's beginning
	// told of new blocks, up to freshLast.
	fresh     bool
	freshLast kvevents.Hash
	// digests are of the event at hand.
	digests []digest
	scratch scratch
	// storing and removing are what stores and removes, the source's turns, are for.
	storing         plan
	removing        removal
	stores, removes *turn
}

// Stats counts blocks since the source was opened.
type Stats struct {
	Stored, Removed uint64
	// Again: copies of what the source held already. Reported: reuses, no copies.
	Again, Reported uint64
	// Unplaced: it is not known what comes before them, so that no tokens lead to them.
	Unplaced uint64
	// Unknown: removed, and not known.
	Unknown uint64
	// Dropped: no memory for them.
	Dropped uint64
	// Ignored: in a medium or of a kind that is not known, of another tenant, or
	// malformed.
	Ignored uint64
	Clears  uint64
}

// Open begins a stream. Two of one instance and rank are two: what either holds counts.
func (x *Index) Open(origin Origin) *Source {
	src := &Source{origin: origin, lanes: map[int]uint32{}, hasher: hasher{seed: x.opts.Seed}}
	src.stores, src.removes = newTurn(src.storePart), newTurn(src.removePart)
	for entered := false; !entered; {
		entered = src.enter(x)
	}
	return src
}

// enter takes a slot in the source's space, false when that has just ended.
func (src *Source) enter(x *Index) bool {
	o := &src.origin
	s := x.space(keyOf(o.Tenant, o.Model, o.LoRA, o.Salt), true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	src.index, src.space = x, s
	made := slot{instance: o.Instance, rank: o.Rank, open: true, everyone: o.Everyone && o.Rank == Shared}
	src.slot = slices.IndexFunc(s.slots, func(known slot) bool { return !known.open && known.windows == nil })
	if src.slot < 0 {
		s.budget.spend(slotBytes)
		s.slots = append(s.slots, slot{})
		src.slot = len(s.slots) - 1
	}
	made.age = s.slots[src.slot].age + 1
	s.slots[src.slot] = made
	s.relate()
	return true
}

// relate notes which slots are of one instance, and which are of all.
func (s *space) relate() {
	type instance struct {
		stores []int
		ranks  int
	}
	instances := map[string]instance{}
	var everyone instance
	for i := range s.slots {
		sl := &s.slots[i]
		known := instances[sl.instance]
		switch {
		case !sl.open:
			continue
		case sl.everyone:
			everyone.stores = append(everyone.stores, i)
			continue
		case sl.rank == Shared:
			known.stores = append(known.stores, i)
		default:
			known.ranks++
			everyone.ranks++
		}
		instances[sl.instance] = known
	}
	for name, known := range instances {
		known.stores = append(known.stores, everyone.stores...)
		instances[name] = known
	}
	for i := range s.slots {
		sl := &s.slots[i]
		of := instances[sl.instance]
		if sl.everyone {
			of = everyone
		}
		sl.stores, sl.ranks = of.stores, of.ranks
	}
}

// Stats returns the counters.
func (src *Source) Stats() Stats { return src.stats }

// Clear forgets all that the source has told.
func (src *Source) Clear() {
	src.stats.Clears++
	s := src.space
	s.mu.Lock()
	defer s.mu.Unlock()
	src.clearLocked()
}

func (src *Source) clearLocked() {
	s := src.space
	for _, l := range src.lanes {
		s.lanes[l].retired = true
		s.retired = append(s.retired, l)
	}
	clear(src.lanes)
	src.miscounted = false
	sl := &s.slots[src.slot]
	sl.dense, sl.windows, sl.dropped, sl.crowded = [tiers]int{}, nil, 0, false
	sl.age++
}

// Close forgets all and ends the stream. The memory of a space is given back with its last
// stream; what others in it leave is used again.
func (src *Source) Close() {
	if s := src.space; src.leave() {
		src.index.mu.Lock()
		defer src.index.mu.Unlock()
		delete(src.index.spaces, s.key)
	}
}

// leave gives up the slot. It is true when it was the last one, and the space has ended.
func (src *Source) leave() bool {
	s := src.space
	s.mu.Lock()
	defer s.mu.Unlock()
	src.clearLocked()
	s.slots[src.slot].open = false
	s.relate()
	if slices.ContainsFunc(s.slots, func(sl slot) bool { return sl.open }) {
		return false
	}
	s.ended = true
	s.budget.giveBack()
	return true
}

// groupKind says what of a group a prefix needs.
type groupKind uint8

const (
	dense  groupKind = iota + 1 // all of it
	window                      // its last blocks
)

// kindOf returns a group's kind by vLLM's name of it. Of one that is not known, or of
// chunks of attention, all blocks are asked for: that may be too many, and never too few.
func kindOf(spec string) groupKind {
	switch spec {
	case "sliding_window", "sliding_window_mla", "mamba":
		return window
	}
	return dense
}

// maxGroups bounds the groups of a source; no engine has more than a handful.
const maxGroups = 64

// laneOf returns the lane of an event's group, false when there is none left: then nobody
// knows what a prefix of the source needs.
func (src *Source) laneOf(group int, kind groupKind, windowTokens int) (uint32, bool) {
	s := src.space
	if l, ok := src.lanes[group]; ok {
		if kind == window {
			src.becomesWindow(l, windowTokens)
		}
		return l, true
	}
	var l uint32
	switch n := len(s.free); {
	case len(src.lanes) >= maxGroups || n == 0 && len(s.lanes) >= maxLanes:
		src.crowd()
		return 0, false
	case n > 0:
		l, s.free = s.free[n-1], s.free[:n-1]
	default:
		s.budget.spend(laneBytes) // without it the group would not count
		l = uint32(len(s.lanes))  //nolint:gosec // at most maxLanes
		s.lanes = append(s.lanes, lane{})
	}
	s.lanes[l] = lane{slot: src.slot, group: group, kind: dense}
	src.lanes[group] = l
	if kind == window {
		src.becomesWindow(l, windowTokens)
	}
	return l, true
}

// crowd notes that a group of the source has no lane. The space is locked.
func (src *Source) crowd() {
	if sl := &src.space.slots[src.slot]; !sl.crowded {
		sl.crowded = true
		sl.age++
	}
}

// tells notes that a lane's group is told of in a tier: from then on, until it is
// cleared, a prefix has to be held in it. That none of its blocks is left does not make
// it a group that there is not.
func (src *Source) tells(l uint32, tier Tier) {
	ln := &src.space.lanes[l]
	if ln.told.has(tier) {
		return
	}
	ln.told |= 1 << tier
	if ln.kind == dense {
		src.space.slots[src.slot].dense[tier]++
	}
}

// becomesWindow notes that a group is a window: vLLM says so with its events since it
// names their kind, before that one comes that leaves blocks out.
func (src *Source) becomesWindow(l uint32, tokens int) {
	s := src.space
	ln, sl := &s.lanes[l], &s.slots[src.slot]
	ln.windowTokens = max(ln.windowTokens, tokens)
	if ln.kind == window {
		return
	}
	ln.kind = window
	for tier := range Tier(tiers) {
		if ln.told.has(tier) {
			sl.dense[tier]--
		}
	}
	sl.windows = append(sl.windows, l)
}
