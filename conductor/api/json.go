package api

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// jsonValue reads JSON where it lies. What it takes and what it makes of it is what
// encoding/json takes and makes; a prompt's tokens it reads some ten times as fast, and
// that is most of a query.
type jsonValue struct {
	data []byte
	at   int
}

var _ value = (*jsonValue)(nil)

// readJSON reads a body, which must be one object.
func readJSON(body []byte, visit func(name string, v value) error) error {
	r := &jsonValue{data: body}
	if err := r.object(visit); err != nil {
		return err
	}
	if r.peek(); r.at < len(r.data) {
		return syntaxErrorf("something is behind the object, at byte %d", r.at)
	}
	return nil
}

// peek skips white space and returns the byte that follows, 0 at the end.
func (r *jsonValue) peek() byte {
	for r.at < len(r.data) {
		switch c := r.data[r.at]; c {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return c
		}
	}
	return 0
}

// mark implements value.
func (r *jsonValue) mark() int { return r.at }

// reset implements value.
func (r *jsonValue) reset(mark int) { r.at = mark }

// strict implements value.
func (*jsonValue) strict() bool { return false }

// literal reads a word.
func (r *jsonValue) literal(word string) bool {
	if !bytes.HasPrefix(r.data[r.at:], []byte(word)) {
		return false
	}
	r.at += len(word)
	return true
}

// null implements value.
func (r *jsonValue) null() bool {
	return r.peek() == 'n' && r.literal("null")
}

// kind names what follows, for messages.
func (r *jsonValue) kind() string {
	switch c := r.peek(); {
	case c == '"':
		return "a text"
	case c == '{':
		return "an object"
	case c == '[':
		return "a list"
	case c == 't' || c == 'f':
		return "a truth value"
	case c == 'n':
		return "null"
	case c == '-' || c >= '0' && c <= '9':
		return "a number"
	}
	return ""
}

// wrong is the error of a value that is not what was wanted.
func (r *jsonValue) wrong(want string) error {
	got := r.kind()
	if err := r.skip(); err != nil {
		return err
	}
	return &typeError{want, got}
}

// extent returns the value that follows, without looking into it more than is needed to
// find its end.
func (r *jsonValue) extent() ([]byte, error) {
	r.peek()
	begin, depth := r.at, 0
	for r.at < len(r.data) {
		switch c := r.data[r.at]; c {
		case '"':
			if err := r.skipString(); err != nil {
				return nil, err
			}
			if depth == 0 {
				return r.data[begin:r.at], nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return r.data[begin:r.at], nil
			}
			if depth--; depth == 0 {
				r.at++
				return r.data[begin:r.at], nil
			}
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return r.data[begin:r.at], nil
			}
		}
		r.at++
	}
	if depth > 0 {
		return nil, syntaxErrorf("it ends in the middle")
	}
	return r.data[begin:r.at], nil
}

// skipString passes over a text.
func (r *jsonValue) skipString() error {
	for r.at++; r.at < len(r.data); r.at++ {
		switch r.data[r.at] {
		case '\\':
			r.at++
		case '"':
			r.at++
			return nil
		}
	}
	return syntaxErrorf("it ends in a text")
}

// skip implements value.
func (r *jsonValue) skip() error {
	begin := r.at
	raw, err := r.extent()
	if err != nil {
		return err
	}
	if !json.Valid(raw) {
		return syntaxErrorf("at byte %d", begin)
	}
	return nil
}

// text implements value.
func (r *jsonValue) text() (string, error) {
	if r.peek() != '"' {
		return "", r.wrong("a text")
	}
	begin := r.at
	if err := r.skipString(); err != nil {
		return "", err
	}
	raw := r.data[begin:r.at]
	for _, c := range raw[1 : len(raw)-1] {
		if c < ' ' || c == '\\' || c >= 0x80 {
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				return "", syntaxErrorf("at byte %d", begin)
			}
			return text, nil
		}
	}
	return string(raw[1 : len(raw)-1]), nil
}

// integer implements value.
func (r *jsonValue) integer() (int64, error) {
	if c := r.peek(); c != '-' && (c < '0' || c > '9') {
		return 0, r.wrong("a whole number")
	}
	begin := r.at
	raw, err := r.extent()
	if err != nil {
		return 0, err
	}
	if !json.Valid(raw) {
		return 0, syntaxErrorf("at byte %d", begin)
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, &rangeError{"want a whole number of 64 bits, got " + shorten(string(raw))}
	}
	return n, nil
}

// shorten keeps a message short whatever was sent.
func shorten(text string) string {
	if len(text) > 32 {
		return text[:32] + "…"
	}
	return text
}

// object implements value.
func (r *jsonValue) object(visit func(name string, v value) error) error {
	if r.peek() != '{' {
		if r.at == len(r.data) {
			return syntaxErrorf("it is empty")
		}
		return r.wrong("an object")
	}
	r.at++
	if r.peek() == '}' {
		r.at++
		return nil
	}
	for {
		if r.peek() != '"' {
			return syntaxErrorf("no field at byte %d", r.at)
		}
		name, err := r.text()
		if err != nil {
			return err
		}
		if r.peek() != ':' {
			return syntaxErrorf("no colon at byte %d", r.at)
		}
		r.at++
		if err := visit(name, r); err != nil {
			return err
		}
		if goesOn, err := r.separator('}'); err != nil || !goesOn {
			return err
		}
	}
}

// array implements value.
func (r *jsonValue) array(visit func(i int, v value) error) error {
	if r.peek() != '[' {
		return r.wrong("a list")
	}
	r.at++
	if r.peek() == ']' {
		r.at++
		return nil
	}
	for i := 0; ; i++ {
		if err := visit(i, r); err != nil {
			return err
		}
		if goesOn, err := r.separator(']'); err != nil || !goesOn {
			return err
		}
	}
}

// separator reads what is behind an element: a comma, or the end.
func (r *jsonValue) separator(end byte) (goesOn bool, err error) {
	switch c := r.peek(); c {
	case ',', end:
		r.at++
		return c == ',', nil
	}
	return false, syntaxErrorf("neither a comma nor %q at byte %d", end, r.at)
}

// elements implements value. A list of lists has more; of them none is wanted.
func (r *jsonValue) elements() int {
	rest := r.data[r.at:]
	if end := bytes.IndexByte(rest, ']'); end >= 0 {
		rest = rest[:end]
	}
	return min(bytes.Count(rest, []byte{','}), len(rest)/2) + 1
}

// hashes implements value: numbers of 64 bits, signed or not, or texts of hexadecimal
// digits, of which the last 16 count, as in vLLM's events.
func (r *jsonValue) hashes(dst []kvevents.Hash) ([]kvevents.Hash, error) {
	err := r.array(func(i int, _ value) error {
		hash, err := r.hash()
		if err != nil && !isSyntax(err) {
			return &elementError{i, err}
		}
		dst = append(dst, hash)
		return err
	})
	return dst, err
}

func (r *jsonValue) hash() (kvevents.Hash, error) {
	begin := r.at
	switch c := r.peek(); {
	case c == '"':
		text, err := r.text()
		if err != nil {
			return 0, err
		}
		return parseHexHash(text)
	case c == '-' || c >= '0' && c <= '9':
	default:
		return 0, r.wrong("a hash: a number or a text of hexadecimal digits")
	}
	raw, err := r.extent()
	if err != nil {
		return 0, err
	}
	if !json.Valid(raw) {
		return 0, syntaxErrorf("at byte %d", begin)
	}
	if n, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return kvevents.Hash(n), nil
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, &rangeError{"want a whole number of 64 bits, got " + shorten(string(raw))}
	}
	return kvevents.Hash(n), nil //nolint:gosec // the same 64 bits
}

// parseHexHash reads a hash that is written in hexadecimal digits.
func parseHexHash(text string) (kvevents.Hash, error) {
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "0x"), "0X")
	if len(digits) == 0 || len(digits) > 128 {
		return 0, &rangeError{"want up to 128 hexadecimal digits, got " + shorten(text)}
	}
	if len(digits) > 16 {
		if _, err := hex.DecodeString(digits[:len(digits)&^1]); err != nil {
			return 0, &rangeError{"want hexadecimal digits, got " + shorten(text)}
		}
		digits = digits[len(digits)-16:]
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || strings.ContainsAny(digits, "_+-") {
		return 0, &rangeError{"want hexadecimal digits, got " + shorten(text)}
	}
	return kvevents.Hash(n), nil
}
