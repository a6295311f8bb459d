package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Tags, the first frame of a request.
const (
	TagLookup  = "lookup"
	TagReset   = "reset"
	TagReset2  = "reset2"
	TagLookup2 = "lookup2"
	TagLookup3 = "lookup3"
	TagSeen    = "seen"
	TagPing    = "ping"
	TagRelease = "release"
)

// MaxRequestIDBytes bounds a request id.
const MaxRequestIDBytes = 1024

var (
	// ErrUnknownTag: the first frame is no tag we know.
	ErrUnknownTag = errors.New("unknown tag")
	// ErrMalformed: a frame is missing, surplus or of the wrong form.
	ErrMalformed = errors.New("malformed request")
)

// Kind says which request it is.
type Kind uint8

// The requests. The zero Kind is none of them.
const (
	KindLookup Kind = iota + 1
	KindLookup2
	KindLookup3
	KindSeen
	KindReset
	KindReset2
	KindPing
	KindRelease
)

// Request is a parsed request. It holds views of the frames.
type Request struct {
	Kind Kind
	// Tokens is the request's length (lookup, lookup2, lookup3).
	Tokens int
	// Hashes are its block hashes from the first (lookup, lookup2, seen), or those of
	// Runs (lookup3).
	Hashes kv.HashBlob
	// Chain is how many block hashes it has, and Runs which of them are in Hashes
	// (lookup3).
	Chain int
	Runs  Runs
	// ID is the engine's request id, which leases are granted to (lookup2, lookup3).
	ID []byte
	// Seq is repeated in the answer (lookup2, lookup3).
	Seq uint64
	// Requests are the ids whose leases are given up (release).
	Requests [][]byte
}

// ParseRequest reads a request's frames.
func ParseRequest(frames [][]byte) (Request, error) {
	if len(frames) == 0 {
		return Request{}, fmt.Errorf("wire: %w: no frames", ErrMalformed)
	}
	switch string(frames[0]) {
	case TagLookup:
		return parseLookup(frames, KindLookup, 4)
	case TagLookup2:
		return parseLookup(frames, KindLookup2, 6)
	case TagLookup3:
		return parseLookup3(frames)
	case TagSeen:
		return parseSeen(frames)
	case TagReset:
		return Request{Kind: KindReset}, wantFrames(frames, 1)
	case TagReset2:
		return Request{Kind: KindReset2}, wantFrames(frames, 1)
	case TagPing:
		return Request{Kind: KindPing}, wantFrames(frames, 1)
	case TagRelease:
		return parseRelease(frames)
	}
	return Request{}, fmt.Errorf("wire: %w %.32q", ErrUnknownTag, frames[0])
}

func parseLookup(frames [][]byte, kind Kind, n int) (Request, error) {
	if err := wantFrames(frames, n); err != nil {
		return Request{}, err
	}
	if len(frames[1]) != 4 || len(frames[2]) != 2 {
		return Request{}, fmt.Errorf("wire: %w: token count of %d bytes and hash length of %d, want 4 and 2", ErrMalformed, len(frames[1]), len(frames[2]))
	}
	hashes, err := kv.NewHashBlob(frames[3], int(binary.BigEndian.Uint16(frames[2])))
	if err != nil {
		return Request{}, fmt.Errorf("wire: %w: %w", ErrMalformed, err)
	}
	r := Request{Kind: kind, Tokens: int(binary.BigEndian.Uint32(frames[1])), Hashes: hashes}
	if kind == KindLookup {
		return r, nil
	}
	if err := r.named(frames[4], frames[5]); err != nil {
		return Request{}, err
	}
	return r, nil
}

// named takes the id and the sequence number of a lookup2 or lookup3.
func (r *Request) named(id, seq []byte) error {
	if len(id) > MaxRequestIDBytes || !utf8.Valid(id) {
		return fmt.Errorf("wire: %w: a request id of %d bytes, want UTF-8 and at most %d", ErrMalformed, len(id), MaxRequestIDBytes)
	}
	if len(seq) != 8 {
		return fmt.Errorf("wire: %w: a sequence number of %d bytes, want 8", ErrMalformed, len(seq))
	}
	r.ID, r.Seq = id, binary.BigEndian.Uint64(seq)
	return nil
}

func parseRelease(frames [][]byte) (Request, error) {
	for _, id := range frames[1:] {
		if len(id) > MaxRequestIDBytes || !utf8.Valid(id) {
			return Request{}, fmt.Errorf("wire: %w: a request id of %d bytes, want UTF-8 and at most %d", ErrMalformed, len(id), MaxRequestIDBytes)
		}
	}
	return Request{Kind: KindRelease, Requests: frames[1:]}, nil
}

func wantFrames(frames [][]byte, n int) error {
	if len(frames) != n {
		return fmt.Errorf("wire: %w: %s in %d frames, want %d", ErrMalformed, frames[0], len(frames), n)
	}
	return nil
}

// EncodeLookup makes the frames of an in-tree lookup.
//
// REQUIRES: 0 <= tokens < 1<<32; hashes is a whole number of hashes of hashLen
// bytes.
func EncodeLookup(tokens, hashLen int, hashes []byte) [][]byte {
	if len(hashes) == 0 {
		hashLen = 0
	}
	return [][]byte{
		[]byte(TagLookup),
		binary.BigEndian.AppendUint32(nil, uint32(tokens)),
		binary.BigEndian.AppendUint16(nil, uint16(hashLen)),
		hashes,
	}
}

// EncodeLookup2 makes the frames of a lookup that is granted a lease.
//
// REQUIRES: as EncodeLookup.
func EncodeLookup2(tokens, hashLen int, hashes []byte, id string, seq uint64) [][]byte {
	frames := EncodeLookup(tokens, hashLen, hashes)
	frames[0] = []byte(TagLookup2)
	return append(frames, []byte(id), binary.BigEndian.AppendUint64(nil, seq))
}

// EncodeRelease makes the frames that give up the leases of requests.
func EncodeRelease(ids []string) [][]byte {
	frames := [][]byte{[]byte(TagRelease)}
	for _, id := range ids {
		frames = append(frames, []byte(id))
	}
	return frames
}
