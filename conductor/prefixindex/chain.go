package prefixindex

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// digest names what a block holds: its own tokens and all before them. The zero
// digest is no block's.
type digest struct{ hi, lo uint64 }

const (
	digestBytes = 16
	tokenBytes  = 4
)

// hasher makes digests.
//
// A digest is of 128 bits: with a hundred million blocks the chance that two are
// equal is 1 in 10^22, and what a digest says is believed. XXH3 does not withstand
// somebody who looks for collisions and knows the seed, so the seed is secret.
type hasher struct {
	seed uint64
	buf  []byte
}

func (h *hasher) sum(data []byte) digest {
	d := xxh3.Hash128Seed(data, h.seed)
	if d.Hi == 0 && d.Lo == 0 {
		d.Lo = 1
	}
	return digest{d.Hi, d.Lo}
}

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
	binary.LittleEndian.PutUint64(data[0:], before.hi)
	binary.LittleEndian.PutUint64(data[8:], before.lo)
	binary.LittleEndian.PutUint64(data[16:], block.hi)
	binary.LittleEndian.PutUint64(data[24:], block.lo)
	return h.sum(data[:])
}

// context is what blocks must have in common besides their tokens.
type context struct {
	tenant, model, lora, engineSalt, salt string
	blockTokens                           int
}
