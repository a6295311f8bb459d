package api

import (
	"encoding/binary"
	"math/bits"
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
		var n int
		dst, at, n = plainTokens(dst, data, at)
		i += n
		for at < len(data) && isSpace(data[at]) {
			at++
		}
		negative := at < len(data) && data[at] == '-'
		if negative {
			at++
		}
		first, token := at, uint64(0)
		for at < len(data) && data[at]-'0' <= 9 && token <= maxToken {
			token = token*10 + uint64(data[at]-'0')
			at++
		}
		if at == first || at-first > 1 && data[first] == '0' || token > maxToken || negative && token > 1<<31 {
			return dst, r.badToken(begin, i)
		}
		if negative {
			token = -token
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(token)) //nolint:gosec // 32 bits, checked
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

// Each byte of a word.
const (
	eachZero = 0x3030303030303030 // '0'
	eachOver = 0x7676767676767676 // carries into the top bit what is over 9
	eachTop  = 0x8080808080808080
)

// plainTokens reads tokens of one to seven digits with a comma behind them, and maybe a
// blank in front, as long as there are such and dst has room: that is how prompts are
// written. It returns where it got to and how many tokens it read; what it does not take
// is its caller's to look at.
//
// Eight bytes are looked at in one word: where the digits end, and what they are worth,
// by three multiplications: a loop over digits ends where no processor foresees it.
func plainTokens(dst, data []byte, at int) (out []byte, end, n int) {
	free := dst[len(dst):cap(dst)]
	used := 0
	for used+tokenBytes <= len(free) && at+9 < len(data) {
		begin := at
		if data[at] == ' ' {
			at++
		}
		digits := binary.LittleEndian.Uint64(data[at:]) ^ eachZero
		length := bits.TrailingZeros64(((digits+eachOver)|digits)&eachTop) / 8
		if length == 0 || length == 8 || data[at+length] != ',' || length > 1 && data[at] == '0' {
			at = begin
			break
		}
		digits <<= 64 - 8*length // zeros in front
		digits = digits*10 + digits>>8
		token := ((digits&0x000000ff000000ff)*(100+1000000<<32) + (digits>>16&0x000000ff000000ff)*(1+10000<<32)) >> 32
		binary.LittleEndian.PutUint32(free[used:], uint32(token)) //nolint:gosec // seven digits
		used += tokenBytes
		at += length + 1
		n++
	}
	return dst[:len(dst)+used], at, n
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
