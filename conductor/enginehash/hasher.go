package enginehash

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// vLLM's algorithms, as --prefix-caching-hash-algo names them.
const (
	SHA256     = "sha256"
	SHA256CBOR = "sha256_cbor"
	XXHash     = "xxhash"
	XXHashCBOR = "xxhash_cbor"
)

// Algorithms returns them all; the first is vLLM's default.
func Algorithms() []string { return []string{SHA256, SHA256CBOR, XXHash, XXHashCBOR} }

// unsetSeed is the seed of cryptographic algorithms where PYTHONHASHSEED is not set.
const unsetSeed = "vllm-none-hash"

// RandomSeed as a profile's seed says that nobody knows it.
const RandomSeed = "random"

var (
	// ErrAlgorithm: there is no such algorithm.
	ErrAlgorithm = errors.New("no hash algorithm of vLLM's")
	// ErrRandom: the engine's hashes begin with random bytes.
	ErrRandom = errors.New("hashes begin with random bytes unless PYTHONHASHSEED is set")
	// ErrTooLong: a block is longer than what is written in one piece.
	ErrTooLong = errors.New("block is too long to be hashed here")
)

// Blocks and salts beyond this are not hashed: what pickle writes of them could take more
// than one frame.
const (
	MaxBlockTokens = 4096
	maxSaltBytes   = 8192
)

// Hasher makes the hashes of one profile. It is not safe for concurrent use.
type Hasher struct {
	encoding encoding
	sum      func([]byte) []byte
	none     []byte
	buf      []byte
}

// New makes a hasher.
func New(profile contract.HashProfile) (*Hasher, error) {
	h := &Hasher{}
	switch profile.Algorithm {
	case SHA256, XXHash:
		h.encoding = pickle{}
	case SHA256CBOR, XXHashCBOR:
		h.encoding = cbor{}
	default:
		return nil, fmt.Errorf("enginehash: %w: %q", ErrAlgorithm, profile.Algorithm)
	}
	cryptographic := profile.Algorithm == SHA256 || profile.Algorithm == SHA256CBOR
	h.sum = xxSum
	if cryptographic {
		h.sum = shaSum
	}
	seed := profile.Seed
	switch {
	case seed == "" && !cryptographic:
		return nil, fmt.Errorf("enginehash: %w", ErrRandom)
	case seed == "":
		seed = unsetSeed
	}
	if len(seed) > maxSaltBytes {
		return nil, fmt.Errorf("enginehash: %w: a seed of %d bytes", ErrTooLong, len(seed))
	}
	h.none = h.sum(h.encoding.seed(nil, seed))
	return h, nil
}

func shaSum(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:]
}

func xxSum(data []byte) []byte {
	sum := xxh3.Hash128(data).Bytes()
	return sum[:]
}

// Next returns the hash of a block behind another one, nil before the first. The first one's
// salt may be empty, the others' is.
func (h *Hasher) Next(before []byte, tokens []uint32, salt string) ([]byte, error) {
	if len(tokens) > MaxBlockTokens || len(salt) > maxSaltBytes {
		return nil, fmt.Errorf("enginehash: %w: %d tokens, a salt of %d bytes", ErrTooLong, len(tokens), len(salt))
	}
	if before == nil {
		before = h.none
	}
	h.buf = h.encoding.block(h.buf[:0], before, tokens, salt)
	return h.sum(h.buf), nil
}

// Prompt returns the hashes of a prompt's whole blocks, as events have them.
func (h *Hasher) Prompt(tokens []uint32, blockTokens int, salt string) ([]kvevents.Hash, error) {
	if blockTokens <= 0 {
		return nil, fmt.Errorf("enginehash: blocks of %d tokens", blockTokens)
	}
	hashes := make([]kvevents.Hash, 0, len(tokens)/blockTokens)
	var before []byte
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		hash, err := h.Next(before, tokens[:blockTokens], salt)
		if err != nil {
			return nil, err
		}
		hashes, before, salt = append(hashes, kvevents.HashOf(hash)), hash, ""
	}
	return hashes, nil
}
