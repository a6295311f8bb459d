package prefixindex

import (
	"encoding/binary"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// digest makes the digests of an event's blocks, each alone. It is false when what
// else went into the hashes can't be read.
func (src *Source) digest(e *kvevents.BlockStored) bool {
	w := &src.scratch
	w.extras = w.extras[:0]
	if e.HasExtraKeys {
		var ok bool
		if w.extras, ok = kvevents.SplitExtraKeys(e.ExtraKeys, w.extras); !ok || len(w.extras) != len(e.Hashes) {
			return false
		}
	}
	blockBytes := e.BlockSize * tokenBytes
	if cap(w.tokens) < blockBytes {
		w.tokens = make([]byte, blockBytes)
	}
	w.tokens = w.tokens[:blockBytes]
	src.digests = src.digests[:0]
	for i := range e.Hashes {
		for j, token := range e.TokenIDs[i*e.BlockSize : (i+1)*e.BlockSize] {
			binary.LittleEndian.PutUint32(w.tokens[j*tokenBytes:], token)
		}
		var extra []byte
		if len(w.extras) > 0 {
			extra, _ = src.extra(e, i)
		}
		src.digests = append(src.digests, src.hasher.block(w.tokens, extra))
	}
	return true
}

// extra returns what went into a block's hash besides its tokens, its adapter and its
// salt, and that salt. The wire names none of them: an adapter's name is known, and
// a salt is the first text of a prompt's first block.
func (src *Source) extra(e *kvevents.BlockStored, i int) (extra, salt []byte) {
	w := &src.scratch
	lora, salted := e.LoraName == "", e.Parent != nil || i > 0
	w.without = w.without[:0]
	kvevents.WalkExtraKeys(w.extras[i], func(value, text []byte) {
		switch {
		case text != nil && !lora && string(text) == e.LoraName:
			lora = true
		case text != nil && !salted:
			salted, salt = true, text
		default:
			w.without = append(w.without, value...)
		}
	})
	return w.without, salt
}

// before returns the digest that an event's blocks go on behind, and a record that has it,
// 0 at a prompt's beginning.
func (src *Source) before(e *kvevents.BlockStored, who holding) (digest, link, bool) {
	if e.Parent == nil {
		c := context{tenant: src.space.key.tenant, model: src.space.key.model, lora: e.LoraName, engineSalt: src.origin.Salt, blockTokens: e.BlockSize}
		if c.lora == "" {
			c.lora = src.origin.LoRA
		}
		if len(src.scratch.extras) > 0 {
			_, salt := src.extra(e, 0)
			c.salt = string(salt)
		}
		return src.hasher.root(&c), 0, true
	}
	s := src.space
	size := s.sizeIn(e.BlockSize)
	var own, others link
	owned, other := 0, 0
	p := s.tables[byHash].probe(s.keyOf(*e.Parent))
	for l := p.next(); l != 0; l = p.next() {
		switch {
		case s.records.hash(l) != *e.Parent || !s.records.placed(l) || *s.records.info(l)&sizeOf != size:
		case s.isHeld(*s.records.holders(l), who):
			own = l
			owned++
		default:
			others = l
			other++
		}
	}
	// Where engines hash each block alone, one hash may be of several: none is taken then.
	switch {
	case owned == 1:
		return s.records.digest(own), own, true
	case owned == 0 && other == 1:
		return s.records.digest(others), others, true
	}
	return 0, 0, false
}
