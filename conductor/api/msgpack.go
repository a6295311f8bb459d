package api

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// maxDepth bounds how deep a body is nested.
const maxDepth = 32

// msgpackValue reads msgpack where it lies.
type msgpackValue struct {
	data  []byte
	at    int
	depth int
}

var _ value = (*msgpackValue)(nil)

// readMsgpack reads a body, which must be one map.
func readMsgpack(body []byte, visit func(name string, v value) error) error {
	r := &msgpackValue{data: body}
	if err := r.object(visit); err != nil {
		return err
	}
	if r.at < len(r.data) {
		return syntaxErrorf("something is behind the map, at byte %d", r.at)
	}
	return nil
}

// item is the head of a value.
type item struct {
	kind byte // one of the below
	// n is the length of a text, bytes, list, map or extension, or the bits of a number.
	n uint64
}

const (
	kindNil  = 'n'
	kindBool = 'b'
	kindUint = 'u'
	kindInt  = 'i' // negative
	kindReal = 'f'
	kindText = 't'
	kindBin  = 'x'
	kindList = 'l'
	kindMap  = 'm'
	kindExt  = 'e'
)

func (i item) String() string {
	names := map[byte]string{
		kindNil: "nil", kindBool: "a truth value", kindUint: "a number", kindInt: "a number", kindReal: "a fraction",
		kindText: "a text", kindBin: "bytes", kindList: "a list", kindMap: "a map", kindExt: "an extension",
	}
	return names[i.kind]
}

// need returns the next n bytes.
func (r *msgpackValue) need(n int) ([]byte, error) {
	if n < 0 || len(r.data)-r.at < n {
		return nil, syntaxErrorf("it ends in the middle")
	}
	part := r.data[r.at : r.at+n]
	r.at += n
	return part, nil
}

// sized reads a big-endian number of 1, 2, 4 or 8 bytes.
func (r *msgpackValue) sized(bytes int) (uint64, error) {
	part, err := r.need(bytes)
	if err != nil {
		return 0, err
	}
	var n uint64
	for _, b := range part {
		n = n<<8 | uint64(b)
	}
	return n, nil
}

// head reads the head of a value.
func (r *msgpackValue) head() (item, error) {
	first, err := r.need(1)
	if err != nil {
		return item{}, err
	}
	c := first[0]
	with := func(kind byte, size int) (item, error) {
		n, err := r.sized(size)
		return item{kind, n}, err
	}
	switch {
	case c <= 0x7f:
		return item{kindUint, uint64(c)}, nil
	case c <= 0x8f:
		return item{kindMap, uint64(c & 0x0f)}, nil
	case c <= 0x9f:
		return item{kindList, uint64(c & 0x0f)}, nil
	case c <= 0xbf:
		return item{kindText, uint64(c & 0x1f)}, nil
	case c >= 0xe0:
		return item{kindInt, uint64(int64(int8(c)))}, nil //nolint:gosec // the bits of a number
	case c == 0xc0:
		return item{kindNil, 0}, nil
	case c == 0xc2 || c == 0xc3:
		return item{kindBool, uint64(c & 1)}, nil
	case c >= 0xc4 && c <= 0xc6:
		return with(kindBin, 1<<(c-0xc4))
	case c >= 0xc7 && c <= 0xc9:
		found, err := with(kindExt, 1<<(c-0xc7))
		found.n++ // its type
		return found, err
	case c == 0xca:
		return with(kindReal, 4)
	case c == 0xcb:
		return with(kindReal, 8)
	case c >= 0xcc && c <= 0xcf:
		return with(kindUint, 1<<(c-0xcc))
	case c >= 0xd0 && c <= 0xd3:
		size := 1 << (c - 0xd0)
		n, err := r.sized(size)
		signed := int64(n<<(64-8*size)) >> (64 - 8*size) //nolint:gosec // the bits of a number
		if signed >= 0 {
			return item{kindUint, uint64(signed)}, err
		}
		return item{kindInt, uint64(signed)}, err //nolint:gosec // the bits of a number
	case c >= 0xd4 && c <= 0xd8:
		return item{kindExt, 1<<(c-0xd4) + 1}, nil
	case c >= 0xd9 && c <= 0xdb:
		return with(kindText, 1<<(c-0xd9))
	case c == 0xdc || c == 0xdd:
		return with(kindList, 2<<(c-0xdc))
	case c == 0xde || c == 0xdf:
		return with(kindMap, 2<<(c-0xde))
	}
	return item{}, syntaxErrorf("no value begins with 0x%02x", c)
}

// mark implements value.
func (r *msgpackValue) mark() int { return r.at }

// reset implements value.
func (r *msgpackValue) reset(mark int) { r.at = mark }

// strict implements value.
func (*msgpackValue) strict() bool { return true }

// null implements value.
func (r *msgpackValue) null() bool {
	if r.at < len(r.data) && r.data[r.at] == 0xc0 {
		r.at++
		return true
	}
	return false
}

// wrong is the error of a value that is not what was wanted; its head was read at begin.
func (r *msgpackValue) wrong(want string, got item, begin int) error {
	r.at = begin
	if err := r.skip(); err != nil {
		return err
	}
	return &typeError{want, got.String()}
}

// bytes returns the body of a value.
func (r *msgpackValue) bytes(head item) ([]byte, error) {
	if head.n > math.MaxInt32 {
		return nil, syntaxErrorf("it ends in the middle")
	}
	return r.need(int(head.n))
}

// text implements value.
func (r *msgpackValue) text() (string, error) {
	begin := r.at
	head, err := r.head()
	if err != nil {
		return "", err
	}
	if head.kind != kindText {
		return "", r.wrong("a text", head, begin)
	}
	part, err := r.bytes(head)
	return string(part), err
}

// integer implements value.
func (r *msgpackValue) integer() (int64, error) {
	begin := r.at
	head, err := r.head()
	switch {
	case err != nil:
		return 0, err
	case head.kind == kindUint && head.n > math.MaxInt64:
		return 0, &rangeError{fmt.Sprintf("%d is more than 63 bits", head.n)}
	case head.kind == kindUint || head.kind == kindInt:
		return int64(head.n), nil //nolint:gosec // checked, or the bits of a number
	}
	return 0, r.wrong("a whole number", head, begin)
}

// object implements value.
func (r *msgpackValue) object(visit func(name string, v value) error) error {
	begin := r.at
	head, err := r.head()
	if err != nil {
		return err
	}
	if head.kind != kindMap {
		return r.wrong("a map", head, begin)
	}
	var unnamed error // the first of the fields whose name is no text
	err = r.nested(head.n, func(uint64) error {
		name, err := r.text()
		if err == nil {
			return visit(name, r)
		}
		if isSyntax(err) {
			return err
		}
		if unnamed == nil {
			unnamed = err
		}
		return r.skip() // the map is read to its end: there may be more behind it
	})
	if err != nil {
		return err
	}
	return unnamed
}

// array implements value.
func (r *msgpackValue) array(visit func(i int, v value) error) error {
	begin := r.at
	head, err := r.head()
	if err != nil {
		return err
	}
	if head.kind != kindList {
		return r.wrong("a list", head, begin)
	}
	return r.nested(head.n, func(i uint64) error { return visit(int(i), r) }) //nolint:gosec // below 2^32
}

// nested reads n elements. Each takes a byte at least, so that a length which was made
// up ends with the body.
func (r *msgpackValue) nested(n uint64, each func(i uint64) error) error {
	if r.depth++; r.depth > maxDepth {
		return syntaxErrorf("nested more than %d deep", maxDepth)
	}
	defer func() { r.depth-- }()
	for i := range n {
		if err := each(i); err != nil {
			return err
		}
	}
	return nil
}

// skip implements value.
func (r *msgpackValue) skip() error {
	head, err := r.head()
	if err != nil {
		return err
	}
	switch head.kind {
	case kindText, kindBin, kindExt:
		_, err = r.bytes(head)
		return err
	case kindList:
		return r.nested(head.n, func(uint64) error { return r.skip() })
	case kindMap:
		return r.nested(2*head.n, func(uint64) error { return r.skip() })
	}
	return nil
}

// tokens implements value: bytes, little-endian in 32 bits, which are not copied, or a
// list of numbers.
func (r *msgpackValue) tokens(dst []byte) ([]byte, error) {
	begin := r.at
	head, err := r.head()
	switch {
	case err != nil:
		return dst, err
	case head.kind == kindBin:
		part, err := r.bytes(head)
		if err == nil && len(part)%tokenBytes != 0 {
			return dst, &rangeError{fmt.Sprintf("%d bytes; want four for each token, little-endian", len(part))}
		}
		return part, err
	case head.kind != kindList:
		return dst, r.wrong("bytes, or a list of token ids", head, begin)
	}
	if head.n > uint64(len(r.data)-r.at) { //nolint:gosec // never negative
		return dst, syntaxErrorf("it ends in the middle")
	}
	for i := range int(head.n) { //nolint:gosec // bounded by the body
		begin := r.at
		token, err := r.head()
		switch {
		case err != nil:
			return dst, err
		case token.kind != kindUint && token.kind != kindInt:
			return dst, &elementError{i, r.wrong("a token id", token, begin)}
		case token.kind == kindUint && token.n > maxToken, token.kind == kindInt && int64(token.n) < math.MinInt32: //nolint:gosec // the bits of a number
			return dst, &elementError{i, &rangeError{"want a whole number of 32 bits"}}
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(token.n)) //nolint:gosec // 32 bits, checked
	}
	return dst, nil
}

// elements implements value.
func (r *msgpackValue) elements() int {
	begin := r.at
	defer func() { r.at = begin }()
	head, err := r.head()
	left := uint64(len(r.data) - r.at) //nolint:gosec // never negative
	switch {
	case err != nil:
		return 0
	case head.kind == kindList:
		return int(min(head.n, left)) //nolint:gosec // bounded by the body
	case head.kind == kindBin:
		return int(min(head.n, left) / 4) //nolint:gosec // bounded by the body; of tokens, which are shorter than hashes
	}
	return 0
}

// hashes implements value: bytes with a hash in each eight, little-endian, or a list of
// numbers or of bytes, of which the last eight count, as in vLLM's events.
func (r *msgpackValue) hashes(dst []kvevents.Hash) ([]kvevents.Hash, error) {
	begin := r.at
	head, err := r.head()
	switch {
	case err != nil:
		return dst, err
	case head.kind == kindBin:
		part, err := r.bytes(head)
		if err == nil && len(part)%8 != 0 {
			return dst, &rangeError{fmt.Sprintf("%d bytes; want eight for each hash, little-endian", len(part))}
		}
		for ; len(part) > 0; part = part[8:] {
			dst = append(dst, kvevents.Hash(binary.LittleEndian.Uint64(part)))
		}
		return dst, err
	case head.kind != kindList:
		return dst, r.wrong("bytes, or a list of hashes", head, begin)
	}
	err = r.nested(head.n, func(i uint64) error {
		hash, err := r.hash()
		dst = append(dst, hash)
		if err != nil && !isSyntax(err) {
			return &elementError{int(i), err} //nolint:gosec // below 2^32
		}
		return err
	})
	return dst, err
}

func (r *msgpackValue) hash() (kvevents.Hash, error) {
	begin := r.at
	head, err := r.head()
	if err != nil {
		return 0, err
	}
	switch head.kind {
	case kindUint, kindInt:
		return kvevents.Hash(head.n), nil
	case kindText:
		part, err := r.bytes(head)
		if err != nil {
			return 0, err
		}
		return parseHexHash(string(part))
	case kindBin:
		part, err := r.bytes(head)
		if err == nil && len(part) < 8 {
			return 0, &rangeError{fmt.Sprintf("%d bytes; want eight at least", len(part))}
		}
		if err != nil {
			return 0, err
		}
		return kvevents.Hash(binary.BigEndian.Uint64(part[len(part)-8:])), nil
	}
	return 0, r.wrong("a hash: a number, or its bytes", head, begin)
}

// unknownField refuses or passes over a field that nobody knows.
func unknownField(name string, v value) error {
	if v.strict() {
		return &contract.FieldError{Field: shorten(name), Reason: reasonUnknown, Text: "no such field"}
	}
	return v.skip()
}
