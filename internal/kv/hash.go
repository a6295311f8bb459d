package kv

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// MaxHashBytes is the longest block hash accepted. vLLM 0.32 sends 32 bytes
// (sha256, sha256_cbor) or 16 (xxhash, xxhash_cbor); see
// vllm/v1/core/kv_cache_utils.py.
const MaxHashBytes = 32

// ErrHashBlob reports a hash blob whose length does not fit its hash length.
var ErrHashBlob = errors.New("malformed hash blob")

// Hash is a block hash padded with zeros to MaxHashBytes. All hashes of a
// namespace have the same length, so padding never makes two of them equal.
type Hash [MaxHashBytes]byte

// Hex returns the first n bytes in hexadecimal, as pool keys spell them.
func (h Hash) Hex(n int) string { return hex.EncodeToString(h[:min(n, MaxHashBytes)]) }

// HashBlob is a view over block hashes that stand back to back: hash i covers
// the tokens [0, (i+1)*hash block tokens). The view lives as long as the bytes
// it was made from.
type HashBlob struct {
	data    []byte
	hashLen int
}

// NewHashBlob checks that data is a whole number of hashes of hashLen bytes.
// An empty blob may have hashLen 0, as the in-tree client sends it.
func NewHashBlob(data []byte, hashLen int) (HashBlob, error) {
	if len(data) == 0 {
		return HashBlob{}, nil
	}
	if hashLen < 8 || hashLen > MaxHashBytes {
		return HashBlob{}, fmt.Errorf("%w: hash length %d, want 8 to %d bytes", ErrHashBlob, hashLen, MaxHashBytes)
	}
	if len(data)%hashLen != 0 {
		return HashBlob{}, fmt.Errorf("%w: %d bytes are no multiple of the hash length %d", ErrHashBlob, len(data), hashLen)
	}
	return HashBlob{data: data, hashLen: hashLen}, nil
}

// Len returns the number of hashes.
func (b HashBlob) Len() int {
	if b.hashLen == 0 {
		return 0
	}
	return len(b.data) / b.hashLen
}

// HashLen returns the length of one hash in bytes, 0 for an empty blob.
func (b HashBlob) HashLen() int { return b.hashLen }

// Bytes returns the hashes back to back, the view's own bytes.
func (b HashBlob) Bytes() []byte { return b.data }

// At returns hash i.
//
// REQUIRES: 0 <= i < b.Len().
func (b HashBlob) At(i int) Hash {
	var h Hash
	copy(h[:], b.data[i*b.hashLen:(i+1)*b.hashLen])
	return h
}
