package api

import (
	"encoding/binary"
	"slices"
)

// tokens implements value. It takes what encoding/json takes for a list of int32 or of
// uint32: whole numbers without a fraction or an exponent.
func (r *jsonValue) tokens(dst []byte) ([]byte, error) {
	if r.peek() != '[' {
		return dst, r.wrong("a list of token ids")
	}
	begin := r.at
	r.at++
	if r.peek() == ']' {
		r.at++
		return dst, nil
	}
	data, at := r.data, r.at
	for i := 0; ; i++ {
		if cap(dst)-len(dst) < tokenBytes {
			// A token takes five to seven bytes of most texts.
			dst = slices.Grow(dst, max((len(data)-at)/6*tokenBytes, 64))
		}
		for at < len(data) && isSpace(data[at]) {
			at++
		}
		negative := at < len(data) && data[at] == '-'
		if negative {
			at++
		}
		first, n := at, uint64(0)
		for at < len(data) && data[at]-'0' <= 9 {
			if n > maxToken {
				break
			}
			n = n*10 + uint64(data[at]-'0')
			at++
		}
		if at == first || at-first > 1 && data[first] == '0' || n > maxToken || negative && n > 1<<31 {
			return dst, r.badToken(begin, i)
		}
		if negative {
			n = -n
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n)) //nolint:gosec // 32 bits, checked
		if at < len(data) && data[at] == ',' {
			at++
			continue
		}
		for at < len(data) && isSpace(data[at]) {
			at++
		}
		switch {
		case at < len(data) && data[at] == ',':
			at++
		case at < len(data) && data[at] == ']':
			r.at = at + 1
			return dst, nil
		default:
			return dst, r.badToken(begin, i)
		}
	}
}

const (
	tokenBytes = 4
	maxToken   = 1<<32 - 1
)

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// badToken says what is wrong with a list, whose i-th element could not be read.
func (r *jsonValue) badToken(begin, i int) error {
	r.at = begin
	if err := r.skip(); err != nil {
		return err
	}
	return &elementError{i, &typeError{"a token id, a whole number of 32 bits", "something else"}}
}
