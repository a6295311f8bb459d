package wire

import (
	"encoding/binary"
	"fmt"
)

// OK and Failed answer reset, reset2 and ping; Failed also answers what does not parse.
// As the answer to a lookup, Failed means a hit of 0.
const (
	OK     = 0x01
	Failed = 0x00
)

// Flags in the answer to a lookup2 or lookup3.
const (
	// FlagPending: the hit may be longer once a slower tier has answered; ask again.
	FlagPending = 1 << iota
	// FlagMore: there is no answer yet, and the first frame says which hashes are to
	// be given too (lookup3).
	FlagMore
	// FlagShow: the server wants to be shown all of the hashes (lookup3).
	FlagShow
	// FlagLasting: what was found is in memory and has no deadline. To offer it for
	// storing again would change nothing.
	FlagLasting
)

const (
	hitBytes      = 4
	boundaryBytes = 8
	statusBytes   = 9
	tierBytes     = 5
)

// Boundary names the hash under which a group's last chunk is stored: the one
// over Tokens tokens.
type Boundary struct{ Group, Tokens int }

// AppendHit begins the answer to a lookup; AppendBoundary follows for each of
// its boundaries.
//
// REQUIRES: 0 <= hitTokens < 1<<32.
func AppendHit(dst []byte, hitTokens int) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(hitTokens))
}

// AppendBoundary continues the answer to a lookup.
//
// REQUIRES: both numbers are in [0, 1<<32).
func AppendBoundary(dst []byte, group, tokens int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, uint32(group)), uint32(tokens))
}

// AppendStatus makes the second frame of the answer to a lookup2 or lookup3.
func AppendStatus(dst []byte, seq uint64, flags byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, seq), flags)
}

// AppendTier continues a status with a part of the hit and the tier that it comes
// from; the parts are in the hit's order and together all of it.
func AppendTier(dst []byte, tier byte, tokens int) []byte {
	return binary.BigEndian.AppendUint32(append(dst, tier), uint32(tokens))
}

// AppendGeneration makes the second frame of the answer to a reset2: the
// generation of the namespace that has begun.
func AppendGeneration(dst []byte, generation uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, generation)
}

// ParseHit reads the first frame of the answer to a lookup.
func ParseHit(frame []byte) (hitTokens int, boundaries []Boundary, err error) {
	if len(frame) < hitBytes || (len(frame)-hitBytes)%boundaryBytes != 0 {
		return 0, nil, fmt.Errorf("wire: %w: a lookup's answer of %d bytes", ErrMalformed, len(frame))
	}
	hitTokens = int(binary.BigEndian.Uint32(frame))
	for rest := frame[hitBytes:]; len(rest) > 0; rest = rest[boundaryBytes:] {
		boundaries = append(boundaries, Boundary{
			Group:  int(binary.BigEndian.Uint32(rest)),
			Tokens: int(binary.BigEndian.Uint32(rest[4:])),
		})
	}
	return hitTokens, boundaries, nil
}

// ParseStatus reads the second frame of the answer to a lookup2 or lookup3, up to the parts
// by tier.
func ParseStatus(frame []byte) (seq uint64, flags byte, err error) {
	if len(frame) < statusBytes || (len(frame)-statusBytes)%tierBytes != 0 {
		return 0, 0, fmt.Errorf("wire: %w: a status of %d bytes, want %d and some times %d", ErrMalformed, len(frame), statusBytes, tierBytes)
	}
	return binary.BigEndian.Uint64(frame), frame[8], nil
}
