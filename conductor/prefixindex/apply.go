package prefixindex

import (
	"math"
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// holdBlocks bounds the blocks for which the lock is held at once, and sweepPages what
// is swept with them. What nearBlocks of them need is loaded at once: the waits overlap, and all of it
// stays in the nearest cache until they are stored.
const (
	holdBlocks = 256
	nearBlocks = 32
	sweepPages = 1
)

// scratch is memory for one event.
type scratch struct {
	tokens  []byte
	extras  [][]byte
	without []byte
	chain   []digest
	links   []link
}

// Apply takes a batch. Events are in the order in which they came; a batch that is
// lost is to be followed by Clear and by whatever tells all anew. A doubtful one clears:
// better is to know nothing than what may be gone.
func (src *Source) Apply(batch *kvevents.Batch) {
	if batch.Doubtful {
		src.Clear()
	}
	src.fresh = false
	for i, event := range batch.Events {
		switch e := event.(type) {
		case *kvevents.BlockStored:
			src.store(e, batch.Events[i+1:])
		case *kvevents.BlockRemoved:
			src.remove(e)
		case *kvevents.AllBlocksCleared:
			src.Clear()
		}
	}
}

func groupOf(group *int) int {
	if group == nil {
		return 0
	}
	return *group
}

func (src *Source) tierOf(medium string) (Tier, bool) {
	if medium == "" { // engines that tell of the GPU's only, before vLLM 0.10
		return GPU, src.origin.Rank != Shared
	}
	return TierOf(medium)
}

// mine tells whether an event is of the source's tenant.
func (src *Source) mine(tenant string) bool {
	return tenant == "" || keyOf(tenant, "", "", "").tenant == src.space.key.tenant
}

// plan is what is to be done with a BlockStored.
type plan struct {
	event *kvevents.BlockStored
	// rest are the events behind it in its batch.
	rest []kvevents.Event
	kind groupKind
	tier Tier
	// first is the block from which on it is not stored; over: the others are not to be.
	first int
	over  bool

	who holding
	// place: the blocks, of a size, follow each other and on before, which is the digest of
	// the record prev, or of none.
	place  bool
	size   info
	before digest
	prev   link
	// reuse: what is held already is no copy.
	reuse bool
	// added: something was not held.
	added bool
}

// store takes an event; rest are those behind it in its batch.
func (src *Source) store(e *kvevents.BlockStored, rest []kvevents.Event) {
	tier, ok := src.tierOf(e.Medium)
	kind := kindOf(e.SpecKind)
	n := len(e.Hashes)
	if !ok || !src.mine(e.Tenant) {
		src.stats.Ignored += uint64(n) //nolint:gosec // a length
		return
	}
	if e.SpecKind == "" && len(e.TokenIDs) > n*e.BlockSize && e.BlockSize > 0 {
		kind = window // it leaves blocks out
	}
	if n == 0 {
		src.storeNone(e, kind, tier)
		return
	}
	if !src.origin.ReusesReported && src.showsReuse(e, tier, rest) {
		src.reusesFound()
	}
	p := &src.storing
	*p = plan{event: e, rest: rest, kind: kind, tier: tier, reuse: src.origin.ReusesReported && fromBeginning(e)}
	p.place = kind == dense && e.BlockSize > 0 && len(e.TokenIDs) == n*e.BlockSize && src.namesAdapter(e) && src.digest(e)
	for ; p.first < n && !p.over; p.first += holdBlocks {
		src.space.take(src.stores)
	}
	if !p.over && p.reuse && kind == dense {
		src.fresh, src.freshLast = p.added, e.Hashes[n-1]
	}
	*p = plan{}
}

// storePart stores the next blocks of the event at hand.
func (src *Source) storePart() {
	p, s := &src.storing, src.space
	e := p.event
	l, ok := src.laneOf(groupOf(e.Group), p.kind, windowTokens(e))
	if !ok {
		src.drop(len(e.Hashes))
		p.over = true
		return
	}
	src.tells(l, p.tier)
	p.who = holdingOf(l, p.tier)
	if p.reuse && s.lanes[l].kind == window && !src.computed(e, p.rest) {
		src.stats.Reported += uint64(len(e.Hashes))
		p.over = true
		return
	}
	src.goesOnBehind(p)
	src.storeLocked(p, e.Hashes[p.first:min(p.first+holdBlocks, len(e.Hashes))])
	s.sweepLocked(sweepPages)
}

// goesOnBehind finds what the event's blocks from p.first on come behind.
func (src *Source) goesOnBehind(p *plan) {
	if !p.place {
		return
	}
	if p.first == 0 {
		p.before, p.prev, p.place = src.before(p.event, p.who)
		p.size = src.space.enterSize(p.event.BlockSize)
		p.place = p.place && p.size != 0
		return
	}
	// Others had the lock meanwhile: where the block before is gone, who knows what else is.
	p.place = p.prev != 0 && src.space.records.digest(p.prev) == p.before
}

// storeNone takes an event that left all blocks out. Of a window it says that there is
// one, and that the prefix can't be resumed there.
func (src *Source) storeNone(e *kvevents.BlockStored, kind groupKind, tier Tier) {
	if kind != window {
		return
	}
	s := src.space
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := src.laneOf(groupOf(e.Group), kind, windowTokens(e))
	if !ok {
		src.drop(1)
		return
	}
	src.tells(l, tier)
}

// namesAdapter tells whether it is known of which adapter an event's blocks are. Others
// are known by their hashes only.
func (src *Source) namesAdapter(e *kvevents.BlockStored) bool {
	return e.LoraID == nil || e.LoraName != "" || src.origin.LoRA != ""
}

// windowTokens returns how many tokens, the next one counted, a window goes back; 2, the
// last block, where one state says all. Where it is not told, the window reaches no
// further back than the blocks that an event does not leave out.
func windowTokens(e *kvevents.BlockStored) int {
	if e.SpecKind == "mamba" {
		return 2
	}
	if e.Window == 0 {
		return min(max(len(e.Hashes)*e.BlockSize+1, 2), math.MaxInt32)
	}
	return min(max(e.Window, 2), math.MaxInt32)
}

// storeLocked adds a copy of each block; the first of them is the event's block at
// p.first.
func (src *Source) storeLocked(p *plan, hashes []kvevents.Hash) {
	if !p.place {
		src.stats.Unplaced += uint64(len(hashes))
	}
	first := p.first
	for part := range slices.Chunk(hashes, nearBlocks) {
		src.storeNear(p, part, first)
		first += len(part)
	}
}

// storeNear is storeLocked for blocks whose memory is loaded at once.
func (src *Source) storeNear(p *plan, hashes []kvevents.Hash, first int) {
	s, w := src.space, &src.scratch
	s.lookForHashes(hashes, &s.ahead[byHash])
	if !p.place {
		for i, hash := range hashes {
			src.storeUnplaced(p, hash, &s.ahead[byHash].seen[i])
		}
		return
	}
	w.chain = w.chain[:0]
	d := p.before
	for i := range hashes {
		d = src.hasher.next(d, src.digests[first+i])
		w.chain = append(w.chain, d)
	}
	s.lookForChain(w.chain, &s.ahead[byChain])
	for i, hash := range hashes {
		p.prev = src.storePlaced(p, hash, w.chain[i], i)
		p.before = w.chain[i]
	}
}

// storePlaced adds a copy of a block, the i-th of those that were looked for, behind
// p.prev and p.before. It returns a record with its digest, 0 when there is none for want
// of memory.
func (src *Source) storePlaced(p *plan, hash kvevents.Hash, chain digest, i int) link {
	s := src.space
	var unplaced link
	others := 0
	l, way := s.tables[byHash].from(&s.ahead[byHash].seen[i])
	for ; l != 0; l = way.next() {
		switch {
		case s.records.hash(l) != hash:
		case !s.records.placed(l):
			unplaced = l
		case s.records.digest(l) == chain:
			src.hold(p, l)
			return l
		default:
			others++
		}
	}
	l = unplaced
	if l == 0 || others > 0 {
		l = s.enter(hash, way.key)
	}
	same := s.find(chain, p.prev, &s.ahead[byChain].seen[i])
	if l == 0 || !s.place(l, p.before, chain, p.size, same) {
		if l != 0 && l != unplaced {
			s.forget(l)
		}
		src.drop(1)
		return same
	}
	src.hold(p, l)
	return l
}

// storeUnplaced adds a copy of a block of which only the hash is known. It is of the one
// record with that; with several it gets one of its own.
func (src *Source) storeUnplaced(p *plan, hash kvevents.Hash, seen *sight) {
	s := src.space
	var unplaced, other link
	others := 0
	l, way := s.tables[byHash].from(seen)
	for ; l != 0; l = way.next() {
		switch {
		case s.records.hash(l) != hash:
		case !s.records.placed(l):
			unplaced = l
		default:
			other = l
			others++
		}
	}
	l = unplaced
	if l == 0 && others == 1 {
		l = other
	}
	if l == 0 {
		l = s.enter(hash, way.key)
	}
	if l == 0 {
		src.drop(1)
		return
	}
	src.hold(p, l)
}

// enter makes a record that nobody holds yet, 0 without memory.
func (s *space) enter(hash kvevents.Hash, k key) link {
	l := s.records.take(&s.budget)
	if l == 0 {
		return 0
	}
	if !s.tables[byHash].insert(k, l, &s.budget) {
		s.records.release(l)
		return 0
	}
	p, i := s.records.of(l)
	p.hashes[i] = hash
	return l
}

// drop counts blocks for which there is no memory. The space is locked.
func (src *Source) drop(blocks int) {
	src.stats.Dropped += uint64(blocks)                 //nolint:gosec // a length
	src.space.slots[src.slot].dropped += uint64(blocks) //nolint:gosec // a length
}

// hold adds a copy.
func (src *Source) hold(p *plan, l link) {
	s := src.space
	h := s.records.holders(l)
	if p.reuse && s.isHeld(*h, p.who) {
		src.stats.Reported++
		return
	}
	again, ok := s.add(h, p.who)
	p.added = p.added || !again
	switch {
	case !ok:
		src.drop(1)
		return
	case again:
		src.stats.Again++
	}
	src.stats.Stored++
}

// isHeld tells whether somebody is among the holders.
func (s *space) isHeld(h holders, who holding) bool {
	var one [1]holding
	for _, h := range s.view(h, &one) {
		if h&whose == who {
			return true
		}
	}
	return false
}

// holds tells whether a block is held.
func (s *space) holds(hash kvevents.Hash, who holding) bool {
	p := s.tables[byHash].probe(s.keyOf(hash))
	for l := p.next(); l != 0; l = p.next() {
		if s.records.hash(l) == hash && s.isHeld(*s.records.holders(l), who) {
			return true
		}
	}
	return false
}

func (src *Source) remove(e *kvevents.BlockRemoved) {
	tier, ok := src.tierOf(e.Medium)
	l, known := src.lanes[groupOf(e.Group)]
	if !ok || !src.mine(e.Tenant) {
		src.stats.Ignored += uint64(len(e.Hashes))
		return
	}
	if !known {
		src.stats.Unknown += uint64(len(e.Hashes))
		return
	}
	src.removing = removal{who: holdingOf(l, tier)}
	for part := range slices.Chunk(e.Hashes, holdBlocks) {
		src.removing.hashes = part
		src.space.take(src.removes)
	}
	src.removing = removal{}
}

// removal is what is to be done with a part of a BlockRemoved.
type removal struct {
	who    holding
	hashes []kvevents.Hash
}

// removePart removes the blocks at hand.
func (src *Source) removePart() {
	s, who := src.space, src.removing.who
	near := &s.ahead[byHash]
	for hashes := range slices.Chunk(src.removing.hashes, nearBlocks) {
		s.lookForHashes(hashes, near)
		for i, hash := range hashes {
			src.removeBlock(hash, &near.seen[i], who)
		}
	}
	s.sweepLocked(sweepPages)
}

func (src *Source) removeBlock(hash kvevents.Hash, seen *sight, who holding) {
	s := src.space
	// To forget a record changes the way to those behind it.
	src.scratch.links = src.scratch.links[:0]
	l, way := s.tables[byHash].from(seen)
	for ; l != 0; l = way.next() {
		if s.records.hash(l) == hash {
			src.scratch.links = append(src.scratch.links, l)
		}
	}
	found := false
	for _, l := range src.scratch.links {
		h := s.records.holders(l)
		found = s.drop(h, who, src.miscounted) || found
		if *h == 0 {
			s.forget(l)
		}
	}
	if found {
		src.stats.Removed++
	} else {
		src.stats.Unknown++
	}
}
