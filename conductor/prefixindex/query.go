package prefixindex

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Query asks who holds how much of a prompt.
type Query struct {
	// Tenant and Model, LoRA and BlockTokens must be those of the blocks.
	Tenant, Model, LoRA string
	BlockTokens         int
	// Salt is the request's cache salt; EngineSalt is Origin.Salt of the engines that are
	// asked for.
	Salt, EngineSalt string
	// Instance, when not empty, is the only one that is wanted.
	Instance string
	// Tokens are the prompt's, little-endian in 32 bits. What is left over behind the
	// last whole block counts for nothing.
	Tokens []byte
	// Hashes, in place of tokens, are what engines call the prompt's blocks.
	Hashes []kvevents.Hash
}

// Match is how much of a prompt one rank of an instance holds, in tokens.
type Match struct {
	Instance string
	Rank     int // Shared: of the store alone, when nothing is known of any rank
	// In is the prefix that is held in each tier.
	In [tiers]int
	// Through is the prefix that is had by going through the tiers: what the GPU holds,
	// behind it what the CPU's memory does, and with disks what either does. The first
	// is In[GPU]. A rank's engine loads in this way.
	Through [tiers]int
	// Truncated: blocks of the rank, or of its store, were dropped for want of memory, so
	// that there may be more; also where nothing is known to be there.
	Truncated bool
}

// maxBlockTokens is the largest block that the decoder passes on.
const maxBlockTokens = 1 << 24

// firstBlocks and mostBlocks are looked up under one hold of the lock: few at first,
// for most prompts end early.
const (
	firstBlocks = 64
	mostBlocks  = 1024
)

// Query appends a match for each rank that holds the first block of a prompt, or may, none
// where the size of its blocks can be nobody's. What comes in while it looks may count
// or not.
func (x *Index) Query(q *Query, dst []Match) []Match {
	if q.BlockTokens <= 0 || q.BlockTokens > maxBlockTokens {
		return dst
	}
	w, ok := x.walks.Get().(*walk)
	if !ok {
		w = &walk{}
	}
	w.q = q
	defer func() {
		w.q = nil
		x.walks.Put(w)
	}()
	for _, lora := range adaptersOf(q) {
		s := x.space(keyOf(q.Tenant, q.Model, lora, q.EngineSalt), false)
		if s == nil {
			continue
		}
		h := hasher{seed: x.opts.Seed}
		w.begin()
		if q.Hashes != nil {
			dst = w.byHashes(s, dst)
			continue
		}
		dst = w.byTokens(s, &h, dst)
	}
	return dst
}

// adaptersOf returns the adapters of the spaces in which a query's blocks may be: of
// engines that name theirs with their blocks, and of those that have the one.
func adaptersOf(q *Query) []string {
	if q.LoRA == "" {
		return []string{""}
	}
	return []string{"", q.LoRA}
}

// byTokens looks up blocks by their digests.
func (w *walk) byTokens(s *space, h *hasher, dst []Match) []Match {
	blockBytes := w.q.BlockTokens * tokenBytes
	if len(w.q.Tokens) < blockBytes {
		return dst
	}
	key := context{tenant: s.key.tenant, model: s.key.model, lora: w.q.LoRA, engineSalt: w.q.EngineSalt, salt: w.q.Salt, blockTokens: w.q.BlockTokens}
	before, tokens := h.root(&key), w.q.Tokens
	for size := firstBlocks; len(tokens) >= blockBytes; size = min(4*size, mostBlocks) {
		w.chain = w.chain[:0]
		for ; len(tokens) >= blockBytes && len(w.chain) < size; tokens = tokens[blockBytes:] {
			before = h.next(before, h.block(tokens[:blockBytes], nil))
			w.chain = append(w.chain, before)
		}
		s.mu.RLock()
		s.findChains(w.chain, &w.found)
		goesOn := w.visit(s)
		if last := !goesOn || len(tokens) < blockBytes; last {
			dst = w.matches(s, dst)
			s.mu.RUnlock()
			return dst
		}
		s.mu.RUnlock()
	}
	return dst
}

// byHashes looks up blocks by what engines call them.
func (w *walk) byHashes(s *space, dst []Match) []Match {
	hashes := w.q.Hashes
	for size := firstBlocks; len(hashes) > 0; size = min(4*size, mostBlocks) {
		part := hashes[:min(size, len(hashes))]
		hashes = hashes[len(part):]
		s.mu.RLock()
		s.findHashes(part, w.q.BlockTokens, &w.found)
		goesOn := w.visit(s)
		if !goesOn || len(hashes) == 0 {
			dst = w.matches(s, dst)
			s.mu.RUnlock()
			return dst
		}
		s.mu.RUnlock()
	}
	return dst
}

// found is who holds some blocks that follow each other.
type found struct {
	holders []holders
	// joined has the holders of the blocks that are in more than one record, by the
	// block; they have holders 0.
	joined map[int][]holding
	sink   cell
}

func (f *found) reset(n int) {
	f.holders = slices.Grow(f.holders[:0], n)[:n]
	clear(f.holders)
	clear(f.joined)
}

// join adds the holders of one more record of a block.
func (f *found) join(s *space, i int, rec *record) {
	var one [1]holding
	if f.holders[i] == 0 && f.joined[i] == nil {
		f.holders[i] = rec.holders
		return
	}
	if f.joined == nil {
		f.joined = map[int][]holding{}
	}
	if f.holders[i] != 0 {
		f.joined[i] = append(f.joined[i], s.view(f.holders[i], &one)...)
		f.holders[i] = 0
	}
	f.joined[i] = append(f.joined[i], s.view(rec.holders, &one)...)
}

// joinedAll puts what was joined in order, each holder once: it may hold several of the
// records.
func (f *found) joinedAll() {
	for i, held := range f.joined {
		slices.Sort(held)
		f.joined[i] = slices.CompactFunc(held, func(a, b holding) bool { return (a^b)&whose == 0 })
	}
}

// of returns the holders of a block.
func (f *found) of(s *space, i int, one *[1]holding) []holding {
	if f.holders[i] == 0 && len(f.joined) > 0 {
		return f.joined[i]
	}
	return s.view(f.holders[i], one)
}

// findChains finds who holds blocks, by their digests. It goes over them in turns, so
// that loads do not wait for each other.
func (s *space) findChains(chain []digest, f *found) {
	f.reset(len(chain))
	t := &s.tables[byChain]
	f.sink ^= s.aheadOfChains(chain)
	for i := range chain {
		for p := t.probe(spread(chain[i].lo)); ; {
			l := p.next()
			if l == 0 {
				break
			}
			rec := s.records.at(l)
			if rec.chain == chain[i] {
				f.join(s, i, rec)
				if rec.meta&metaTwin == 0 {
					break
				}
			}
		}
	}
	f.joinedAll()
}

// findHashes finds who holds blocks of a size, or of one that is not known, by their
// hashes.
func (s *space) findHashes(hashes []kvevents.Hash, blockTokens int, f *found) {
	f.reset(len(hashes))
	t := &s.tables[byHash]
	f.sink ^= s.aheadOfHashes(hashes)
	for i, hash := range hashes {
		p := t.probe(spread(uint64(hash)))
		for l := p.next(); l != 0; l = p.next() {
			rec := s.records.at(l)
			if tokens := int(rec.meta & metaTokens); rec.hash == hash && (tokens == blockTokens || tokens == 0) {
				f.join(s, i, rec)
			}
		}
	}
	f.joinedAll()
}
