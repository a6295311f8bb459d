package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
)

// errCut: the bytes end before the value does.
var errCut = errors.New("ends in the middle of a value")

// errKind: a value is not of the kind that is wanted.
var errKind = errors.New("a value of another kind")

// maxDepth bounds how deep values are nested: extra keys are lists of tuples.
const maxDepth = 16

// errDeep: values are nested deeper than maxDepth.
var errDeep = errors.New("nested too deep")

// errMany: there is more of something than is read.
var errMany = errors.New("too many values")

// errUnknown: nobody knows what an event of this kind says.
var errUnknown = errors.New("not known")

// cursor reads MessagePack values one after the other. The first error stays; what
// is read behind it is zero. What it returns are views of data.
type cursor struct {
	data []byte
	at   int
	err  error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
		c.at = len(c.data)
	}
}

// peek returns the byte that says what comes next, nil's when nothing does.
func (c *cursor) peek() byte {
	if c.at >= len(c.data) {
		c.fail(errCut)
		return codeNil
	}
	return c.data[c.at]
}

// take returns the next n bytes.
func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.data)-c.at {
		c.fail(errCut)
		return nil
	}
	c.at += n
	return c.data[c.at-n : c.at]
}

// big reads an unsigned number of 1, 2, 4 or 8 bytes.
func (c *cursor) big(size int) uint64 {
	b := c.take(size)
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	case 8:
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// The codes of MessagePack.
const (
	codeNil                        = 0xc0
	codeFalse, codeTrue            = 0xc2, 0xc3
	codeBin8, codeBin16, codeBin32 = 0xc4, 0xc5, 0xc6
	codeExt8, codeExt32            = 0xc7, 0xc9
	codeFloat32, codeFloat64       = 0xca, 0xcb
	codeUint8, codeUint64          = 0xcc, 0xcf
	codeInt8, codeInt64            = 0xd0, 0xd3
	codeFixExt1, codeFixExt16      = 0xd4, 0xd8
	codeStr8, codeStr32            = 0xd9, 0xdb
	codeArray16, codeArray32       = 0xdc, 0xdd
	codeMap16, codeMap32           = 0xde, 0xdf
)

// null skips a nil and tells whether there was one.
func (c *cursor) null() bool {
	if c.peek() != codeNil || c.err != nil {
		return false
	}
	c.at++
	return true
}

// array reads the head of an array. The length is at most that of the bytes left.
func (c *cursor) array() int {
	code := c.peek()
	switch {
	case code&0xf0 == 0x90:
		c.at++
		return c.elements(uint64(code&0x0f), 1)
	case code == codeArray16 || code == codeArray32:
		c.at++
		return c.elements(c.big(2<<(code-codeArray16)), 1)
	}
	c.fail(errKind)
	return 0
}

// mapping reads the head of a map and returns its number of pairs.
func (c *cursor) mapping() int {
	code := c.peek()
	switch {
	case code&0xf0 == 0x80:
		c.at++
		return c.elements(uint64(code&0x0f), 2)
	case code == codeMap16 || code == codeMap32:
		c.at++
		return c.elements(c.big(2<<(code-codeMap16)), 2)
	}
	c.fail(errKind)
	return 0
}

// elements checks a length against the bytes left, of which each element has some.
func (c *cursor) elements(n, valuesEach uint64) int {
	if n*valuesEach > uint64(len(c.data)-c.at) {
		c.fail(errCut)
		return 0
	}
	return int(n) //nolint:gosec // at most the bytes left
}

// bytes reads a text or binary value.
func (c *cursor) bytes() []byte {
	code := c.peek()
	switch {
	case code&0xe0 == 0xa0:
		c.at++
		return c.take(int(code & 0x1f))
	case code >= codeStr8 && code <= codeStr32:
		c.at++
		return c.take(int(c.big(1 << (code - codeStr8)))) //nolint:gosec // at most 32 bits
	case code >= codeBin8 && code <= codeBin32:
		c.at++
		return c.take(int(c.big(1 << (code - codeBin8)))) //nolint:gosec // at most 32 bits
	}
	c.fail(errKind)
	return nil
}

// number reads an integer as its 64 bits. negative: they are a negative number's.
func (c *cursor) number() (bits uint64, negative bool) {
	code := c.peek()
	switch {
	case code < 0x80:
		c.at++
		return uint64(code), false
	case code >= 0xe0:
		c.at++
		return uint64(int64(int8(code))), true //nolint:gosec // sign extension
	case code >= codeUint8 && code <= codeUint64:
		c.at++
		return c.big(1 << (code - codeUint8)), false
	case code >= codeInt8 && code <= codeInt64:
		c.at++
		size := 1 << (code - codeInt8)
		shift := 64 - 8*size
		v := int64(c.big(size)<<shift) >> shift //nolint:gosec // sign extension
		return uint64(v), v < 0                 //nolint:gosec // the same bits
	}
	c.fail(errKind)
	return 0, false
}

// natural reads an integer from 0 to most.
func (c *cursor) natural(most uint64) uint64 {
	v, negative := c.number()
	if negative || v > most {
		c.fail(errKind)
		return 0
	}
	return v
}

// real reads a number of any kind. whole: it was an integer.
func (c *cursor) real() (v float64, whole bool) {
	switch c.peek() {
	case codeFloat32:
		c.at++
		return float64(math.Float32frombits(uint32(c.big(4)))), false //nolint:gosec // four bytes
	case codeFloat64:
		c.at++
		return math.Float64frombits(c.big(8)), false
	}
	bits, negative := c.number()
	if negative {
		return float64(int64(bits)), true //nolint:gosec // a negative number's bits
	}
	return float64(bits), true
}

// skip passes over a value.
func (c *cursor) skip() { c.skipWithin(maxDepth) }

func (c *cursor) skipWithin(depth int) {
	if depth == 0 {
		c.fail(errDeep)
		return
	}
	code := c.peek()
	switch {
	case c.err != nil:
	case code < 0x80 || code >= 0xe0 || code == codeNil || code == codeFalse || code == codeTrue:
		c.at++
	case code&0xf0 == 0x80 || code == codeMap16 || code == codeMap32:
		for n := 2 * c.mapping(); n > 0 && c.err == nil; n-- {
			c.skipWithin(depth - 1)
		}
	case code&0xf0 == 0x90 || code == codeArray16 || code == codeArray32:
		for n := c.array(); n > 0 && c.err == nil; n-- {
			c.skipWithin(depth - 1)
		}
	case code >= codeExt8 && code <= codeExt32:
		c.at++
		c.take(1 + int(c.big(1<<(code-codeExt8)))) //nolint:gosec // at most 32 bits
	case code == codeFloat32 || code == codeFloat64:
		c.real()
	case code >= codeUint8 && code <= codeInt64:
		c.number()
	case code >= codeFixExt1 && code <= codeFixExt16:
		c.take(2 + 1<<(code-codeFixExt1))
	default:
		c.bytes() // or it is 0xc1, which is never used
	}
}
