package connector

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// maxDepth bounds nesting: the msgpack decoder recurses.
	maxDepth = 8
	// maxValues bounds the values of a frame. A value of one byte can decode to
	// a struct of a hundred, so that the frame's length alone is no bound on
	// memory. The bulk of an honest frame is binary strings: one value each.
	maxValues = 1 << 18
)

var errTruncated = errors.New("the bytes end inside a value")

// scan checks, without recursion or allocation, that b is exactly one msgpack
// map within the limits. After it, every length in b is true.
func scan(b []byte) error {
	if len(b) == 0 {
		return errTruncated
	}
	if c := b[0]; c&0xf0 != 0x80 && c != 0xde && c != 0xdf {
		return fmt.Errorf("a frame is a map, this one begins with 0x%02x", c)
	}
	var open [maxDepth]uint64 // values still missing, by depth
	depth, values := 0, 0
	for {
		if values++; values > maxValues {
			return fmt.Errorf("more than %d values", maxValues)
		}
		size, children, err := head(b)
		if err != nil {
			return err
		}
		if size > uint64(len(b)) || children > uint64(len(b)) {
			return errTruncated
		}
		b = b[size:]
		if children > 0 {
			if depth == maxDepth {
				return fmt.Errorf("nested deeper than %d", maxDepth)
			}
			open[depth] = children
			depth++
			continue
		}
		for depth > 0 {
			if open[depth-1]--; open[depth-1] > 0 {
				break
			}
			depth--
		}
		if depth == 0 {
			break
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%d bytes after the map", len(b))
	}
	return nil
}

// head returns how many bytes the value at the start of b takes, its children
// left out, and how many children follow.
func head(b []byte) (size, children uint64, err error) {
	if len(b) == 0 {
		return 0, 0, errTruncated
	}
	c := b[0]
	switch {
	case c <= 0x7f || c >= 0xe0: // small integers
		return 1, 0, nil
	case c <= 0x8f: // small map
		return 1, 2 * uint64(c&0x0f), nil
	case c <= 0x9f: // small array
		return 1, uint64(c & 0x0f), nil
	case c <= 0xbf: // small string
		return 1 + uint64(c&0x1f), 0, nil
	}
	switch c {
	case 0xc0, 0xc2, 0xc3: // nil, false, true
		return 1, 0, nil
	case 0xcc, 0xd0: // 8-bit integers
		return 2, 0, nil
	case 0xcd, 0xd1: // 16-bit
		return 3, 0, nil
	case 0xce, 0xd2, 0xca: // 32-bit, float
		return 5, 0, nil
	case 0xcf, 0xd3, 0xcb: // 64-bit, double
		return 9, 0, nil
	}
	var width int
	switch c {
	case 0xc4, 0xd9: // binary, string with a u8 length
		width = 1
	case 0xc5, 0xda, 0xdc, 0xde:
		width = 2
	case 0xc6, 0xdb, 0xdd, 0xdf:
		width = 4
	default:
		return 0, 0, fmt.Errorf("a value of the unknown kind 0x%02x", c)
	}
	n, ok := length(b[1:], width)
	if !ok {
		return 0, 0, errTruncated
	}
	switch c {
	case 0xdc, 0xdd:
		return 1 + uint64(width), n, nil
	case 0xde, 0xdf:
		return 1 + uint64(width), 2 * n, nil
	}
	return 1 + uint64(width) + n, 0, nil
}

func length(b []byte, width int) (n uint64, ok bool) {
	if len(b) < width {
		return 0, false
	}
	switch width {
	case 1:
		return uint64(b[0]), true
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), true
	}
	return uint64(binary.BigEndian.Uint32(b)), true
}
