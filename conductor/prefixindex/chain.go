package prefixindex

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// digest names what a block holds: its own tokens and all before them. The zero
// digest is no block's.
type digest uint64

const (
	digestBytes = 8
	tokenBytes  = 4
)

// hasher makes digests; doc.go says how far they are to be trusted. XXH3 does not
// withstand somebody who looks for collisions and knows the seed, so the seed is secret.
type hasher struct {
	seed uint64
	buf  []byte
}

func (h *hasher) sum(data []byte) digest { return digest(max(xxh3.HashSeed(data, h.seed), 1)) }

// root returns the digest before a first block: of all besides tokens that must be
// equal for blocks to be.
func (h *hasher) root(c *context) digest {
	h.buf = h.buf[:0]
	for _, text := range [...]string{c.tenant, c.model, c.lora, c.engineSalt, c.salt} {
		h.buf = binary.LittleEndian.AppendUint64(h.buf, uint64(len(text)))
		h.buf = append(h.buf, text...)
	}
	h.buf = binary.LittleEndian.AppendUint64(h.buf, uint64(c.blockTokens)) //nolint:gosec // bounded by its checks
	return h.sum(h.buf)
}

// block returns the digest of a block alone: its tokens, little-endian in 32 bits, and
// what else went into its hash.
func (h *hasher) block(tokens, extra []byte) digest {
	if len(extra) == 0 {
		return h.sum(tokens)
	}
	// Blocks of one root are of one length, so that no block without has these bytes.
	h.buf = append(append(h.buf[:0], tokens...), extra...)
	return h.sum(h.buf)
}

// next returns the digest of a block behind another one.
func (h *hasher) next(before, block digest) digest {
	var data [2 * digestBytes]byte
	binary.LittleEndian.PutUint64(data[0:], uint64(before))
	binary.LittleEndian.PutUint64(data[8:], uint64(block))
	return h.sum(data[:])
}

// context is what blocks must have in common besides their tokens.
type context struct {
	tenant, model, lora, engineSalt, salt string
	blockTokens                           int
}
