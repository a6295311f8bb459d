package enginehash

import (
	"encoding/binary"
	"math"
)

// The opcodes of pickle that are needed, and the lengths up to which it has short forms.
const (
	opProto       = 0x80
	opFrame       = 0x95
	opMemoize     = 0x94
	opMark        = '('
	opTuple       = 't'
	opEmptyTuple  = ')'
	opTuple1      = 0x85
	opTuple2      = 0x86
	opTuple3      = 0x87
	opNone        = 'N'
	opStop        = '.'
	opInt1        = 'K'
	opInt2        = 'M'
	opInt4        = 'J'
	opLong1       = 0x8a
	opShortBytes  = 'C'
	opShortText   = 0x8c
	opText        = 'X'
	pickleVersion = 5
	frameBytes    = 8
	shortBytes    = 1<<8 - 1
)

// encoding writes the values of which hashes are made.
type encoding interface {
	// seed appends a text.
	seed(dst []byte, text string) []byte
	// block appends (parent, tokens, ((salt's tag, salt),) or None); salt may be empty.
	block(dst, parent []byte, tokens []uint32, salt string) []byte
}

// saltTag is what vLLM puts before a salt.
const saltTag = "cache_salt"

// pickle writes what pickle.dumps(value, protocol=5) does, of values that fit in one frame.
type pickle struct{}

func (pickle) seed(dst []byte, text string) []byte {
	dst, at := begin(dst)
	return finish(pickleText(dst, text), at)
}

func (pickle) block(dst, parent []byte, tokens []uint32, salt string) []byte {
	dst, at := begin(dst)
	dst = append(dst, opShortBytes, byte(len(parent))) //nolint:gosec // a hash
	dst = append(append(dst, parent...), opMemoize)
	dst = pickleTokens(dst, tokens)
	if salt == "" {
		dst = append(dst, opNone)
	} else {
		dst = pickleText(pickleText(dst, saltTag), salt)
		dst = append(dst, opTuple2, opMemoize, opTuple1, opMemoize)
	}
	return finish(append(dst, opTuple3, opMemoize), at)
}

// begin opens the frame, whose length finish fills in.
func begin(dst []byte) (opened []byte, at int) {
	dst = append(dst, opProto, pickleVersion, opFrame)
	return append(dst, make([]byte, frameBytes)...), len(dst)
}

func finish(dst []byte, at int) []byte {
	dst = append(dst, opStop)
	binary.LittleEndian.PutUint64(dst[at:], uint64(len(dst)-at-frameBytes))
	return dst
}

func pickleText(dst []byte, text string) []byte {
	if len(text) <= shortBytes {
		dst = append(dst, opShortText, byte(len(text)))
	} else {
		dst = binary.LittleEndian.AppendUint32(append(dst, opText), uint32(len(text))) //nolint:gosec // within a frame
	}
	return append(append(dst, text...), opMemoize)
}

func pickleTokens(dst []byte, tokens []uint32) []byte {
	if len(tokens) == 0 {
		return append(dst, opEmptyTuple) // the one that has no entry in the memo
	}
	if len(tokens) > 3 {
		dst = append(dst, opMark)
	}
	for _, token := range tokens {
		switch {
		case token <= math.MaxUint8:
			dst = append(dst, opInt1, byte(token))
		case token <= math.MaxUint16:
			dst = binary.LittleEndian.AppendUint16(append(dst, opInt2), uint16(token))
		case token <= math.MaxInt32:
			dst = binary.LittleEndian.AppendUint32(append(dst, opInt4), token)
		default: // signed, so that it takes a fifth byte
			dst = append(binary.LittleEndian.AppendUint32(append(dst, opLong1, 5), token), 0)
		}
	}
	switch len(tokens) {
	case 1:
		dst = append(dst, opTuple1)
	case 2:
		dst = append(dst, opTuple2)
	case 3:
		dst = append(dst, opTuple3)
	default:
		dst = append(dst, opTuple)
	}
	return append(dst, opMemoize)
}

// The major types of CBOR that are needed, in their three bits.
const (
	cborUint  = 0 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6
)

// cbor writes what cbor2.dumps(value, canonical=True) does.
type cbor struct{}

func (cbor) seed(dst []byte, text string) []byte { return cborString(dst, text) }

func (cbor) block(dst, parent []byte, tokens []uint32, salt string) []byte {
	dst = cborHead(dst, cborArray, 3)
	dst = append(cborHead(dst, cborBytes, uint64(len(parent))), parent...)
	dst = cborHead(dst, cborArray, uint64(len(tokens)))
	for _, token := range tokens {
		dst = cborHead(dst, cborUint, uint64(token))
	}
	if salt == "" {
		return append(dst, cborNull)
	}
	dst = cborHead(cborHead(dst, cborArray, 1), cborArray, 2)
	return cborString(cborString(dst, saltTag), salt)
}

func cborString(dst []byte, text string) []byte {
	return append(cborHead(dst, cborText, uint64(len(text))), text...)
}

// cborHead appends a type with its length or value, as short as can be.
func cborHead(dst []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(dst, major|byte(n))
	case n <= math.MaxUint8:
		return append(dst, major|24, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(n))
	default: // lengths and tokens have 32 bits
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(n)) //nolint:gosec // as above
	}
}
