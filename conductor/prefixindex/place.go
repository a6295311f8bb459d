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

// before returns the digest that an event's blocks go on behind.
func (src *Source) before(e *kvevents.BlockStored, who holding) (digest, bool) {
	if e.Parent == nil {
		c := context{tenant: src.space.key.tenant, model: src.space.key.model, lora: e.LoraName, engineSalt: src.origin.Salt, blockTokens: e.BlockSize}
		if c.lora == "" {
			c.lora = src.origin.LoRA
		}
		if len(src.scratch.extras) > 0 {
			_, salt := src.extra(e, 0)
			c.salt = string(salt)
		}
		return src.hasher.root(&c), true
	}
	s := src.space
	var own, others []digest
	var room [2][2]digest
	own, others = room[0][:0], room[1][:0]
	p := s.tables[byHash].probe(spread(uint64(*e.Parent)))
	for l := p.next(); l != 0; l = p.next() {
		rec := s.records.at(l)
		switch {
		case rec.hash != *e.Parent || !rec.placed() || int(rec.meta&metaTokens) != e.BlockSize:
		case s.isHeld(rec, who):
			own = append(own, rec.chain)
		default:
			others = append(others, rec.chain)
		}
	}
	// Where engines hash each block alone, one hash may be of several: none is taken then.
	switch {
	case len(own) == 1:
		return own[0], true
	case len(own) == 0 && len(others) == 1:
		return others[0], true
	}
	return digest{}, false
}
