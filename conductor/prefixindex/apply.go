package prefixindex

import (
	"math"
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// holdBlocks bounds the blocks for which the lock is held at once, and sweepPages what
// is swept with them.
const (
	holdBlocks = 256
	sweepPages = 1
)

// scratch is memory for one event.
type scratch struct {
	tokens  []byte
	extras  [][]byte
	without []byte
	chains  []digest
	links   []link
	// sink keeps loads that bring memory near from being left out.
	sink cell
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
	who         holding
	blockTokens int
	// place: the blocks follow each other and on before.
	place  bool
	before digest
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
	p := plan{blockTokens: e.BlockSize, reuse: src.origin.ReusesReported && fromBeginning(e)}
	p.place = kind == dense && e.BlockSize > 0 && len(e.TokenIDs) == n*e.BlockSize && src.namesAdapter(e) && src.digest(e)
	s := src.space
	for first := 0; first < n; first += holdBlocks {
		last := min(first+holdBlocks, n)
		s.mu.Lock()
		l, ok := src.laneOf(groupOf(e.Group), kind, windowTokens(e))
		if !ok {
			src.drop(n)
			s.mu.Unlock()
			return
		}
		src.tells(l, tier)
		p.who = holdingOf(l, tier)
		if p.reuse && s.lanes[l].kind == window && !src.computed(e, rest) {
			src.stats.Reported += uint64(n) //nolint:gosec // a length
			s.mu.Unlock()
			return
		}
		if first == 0 && p.place {
			p.before, p.place = src.before(e, p.who)
		}
		src.storeLocked(&p, e.Hashes[first:last], first)
		s.sweepLocked(sweepPages)
		s.mu.Unlock()
	}
	if p.reuse && kind == dense {
		src.fresh, src.freshLast = p.added, e.Hashes[n-1]
	}
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
// first.
func (src *Source) storeLocked(p *plan, hashes []kvevents.Hash, first int) {
	s, w := src.space, &src.scratch
	w.chains = slices.Grow(w.chains[:0], len(hashes))[:len(hashes)]
	if p.place {
		for i := range hashes {
			p.before = src.hasher.next(p.before, src.digests[first+i])
			w.chains[i] = p.before
		}
	} else {
		clear(w.chains)
		src.stats.Unplaced += uint64(len(hashes))
	}
	w.sink ^= s.aheadOfHashes(hashes)
	if p.place {
		w.sink ^= s.aheadOfChains(w.chains)
	}
	for i, hash := range hashes {
		src.storeBlock(p, hash, w.chains[i])
	}
}

// storeBlock adds a copy of a block. Without a chain it is of the one record with its
// hash; with several it gets one of its own, whose chain stays unknown.
func (src *Source) storeBlock(p *plan, hash kvevents.Hash, chain digest) {
	s := src.space
	var exact, unplaced, other link
	others := 0
	way := s.tables[byHash].probe(spread(uint64(hash)))
	for l := way.next(); l != 0; l = way.next() {
		switch rec := s.records.at(l); {
		case rec.hash != hash:
		case !rec.placed():
			unplaced = l
		case p.place && rec.chain == chain:
			exact = l
		default:
			other = l
			others++
		}
	}
	switch {
	case exact != 0:
		src.hold(p, s.records.at(exact))
		return
	case unplaced != 0 && p.place && others == 0:
		if !s.place(unplaced, chain, p.blockTokens) {
			src.drop(1)
			return
		}
		src.hold(p, s.records.at(unplaced))
		return
	case unplaced != 0 && !p.place:
		src.hold(p, s.records.at(unplaced))
		return
	case others == 1 && !p.place:
		src.hold(p, s.records.at(other))
		return
	}
	l := s.records.take(&s.budget)
	if l == 0 {
		src.drop(1)
		return
	}
	rec := s.records.at(l)
	rec.hash = hash
	if !s.tables[byHash].insert(rec.keyOf(byHash), l, &s.budget) {
		s.records.release(l)
		src.drop(1)
		return
	}
	if p.place && !s.place(l, chain, p.blockTokens) {
		s.forget(l)
		src.drop(1)
		return
	}
	src.hold(p, rec)
}

// drop counts blocks for which there is no memory. The space is locked.
func (src *Source) drop(blocks int) {
	src.stats.Dropped += uint64(blocks)                 //nolint:gosec // a length
	src.space.slots[src.slot].dropped += uint64(blocks) //nolint:gosec // a length
}

// place says what comes before a record's block, false when there is no memory.
func (s *space) place(l link, chain digest, blockTokens int) bool {
	t, k := &s.tables[byChain], spread(chain.lo)
	meta := uint32(blockTokens) //nolint:gosec // bounded by the decoder
	p := t.probe(k)
	for other := p.next(); other != 0; other = p.next() {
		if twin := s.records.at(other); twin.chain == chain {
			twin.meta |= metaTwin
			meta |= metaTwin
		}
	}
	if !t.insert(k, l, &s.budget) {
		return false
	}
	rec := s.records.at(l)
	rec.chain, rec.meta = chain, meta
	return true
}

// hold adds a copy.
func (src *Source) hold(p *plan, rec *record) {
	s := src.space
	if p.reuse && s.isHeld(rec, p.who) {
		src.stats.Reported++
		return
	}
	again, ok := s.add(rec, p.who)
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

// isHeld tells whether a record is held.
func (s *space) isHeld(rec *record, who holding) bool {
	var one [1]holding
	for _, h := range s.view(rec.holders, &one) {
		if h&whose == who {
			return true
		}
	}
	return false
}

// holds tells whether a block is held.
func (s *space) holds(hash kvevents.Hash, who holding) bool {
	p := s.tables[byHash].probe(spread(uint64(hash)))
	for l := p.next(); l != 0; l = p.next() {
		if rec := s.records.at(l); rec.hash == hash && s.isHeld(rec, who) {
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
	s := src.space
	who := holdingOf(l, tier)
	for first := 0; first < len(e.Hashes); first += holdBlocks {
		hashes := e.Hashes[first:min(first+holdBlocks, len(e.Hashes))]
		s.mu.Lock()
		src.scratch.sink ^= s.aheadOfHashes(hashes)
		for _, hash := range hashes {
			src.removeBlock(hash, who)
		}
		s.sweepLocked(sweepPages)
		s.mu.Unlock()
	}
}

func (src *Source) removeBlock(hash kvevents.Hash, who holding) {
	s := src.space
	// To forget a record changes the way to those behind it.
	src.scratch.links = src.scratch.links[:0]
	p := s.tables[byHash].probe(spread(uint64(hash)))
	for l := p.next(); l != 0; l = p.next() {
		if s.records.at(l).hash == hash {
			src.scratch.links = append(src.scratch.links, l)
		}
	}
	found := false
	for _, l := range src.scratch.links {
		rec := s.records.at(l)
		found = s.drop(rec, who, src.miscounted) || found
		if rec.holders == 0 {
			s.forget(l)
		}
	}
	if found {
		src.stats.Removed++
	} else {
		src.stats.Unknown++
	}
}
