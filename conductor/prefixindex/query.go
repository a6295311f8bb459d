package prefixindex

import (
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
		s.findChains(w.chain, &w.found, &w.at)
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
