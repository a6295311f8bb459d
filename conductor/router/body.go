package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// body is a JSON object of which the fields are known, and their values' bytes. What is
// in the values is whoever's they are for.
type body struct {
	raw    []byte
	fields []field
}

// field is one of the object's, with its value as it is written.
type field struct {
	name  string
	value []byte
}

// maxFields of a body.
const maxFields = 256

var errBody = errors.New("the body is not a JSON object")

// parseBody finds the fields of an object. A name that comes twice is refused: two
// readers may take different ones for it.
func parseBody(raw []byte) (*body, error) {
	b := &body{raw: raw}
	s := scanner{raw: raw}
	if !s.take('{') {
		return nil, fmt.Errorf("%w: it does not begin with {", errBody)
	}
	for first := true; !s.take('}'); first = false {
		if !first && !s.take(',') {
			return nil, fmt.Errorf("%w: no comma at byte %d", errBody, s.at)
		}
		quoted := s.value()
		if len(quoted) == 0 || quoted[0] != '"' || !s.take(':') {
			return nil, fmt.Errorf("%w: no name at byte %d", errBody, s.at)
		}
		value := s.value()
		if value == nil {
			return nil, fmt.Errorf("%w: no value at byte %d", errBody, s.at)
		}
		name := string(quoted[1 : len(quoted)-1])
		if bytes.IndexByte(quoted, '\\') >= 0 {
			if err := json.Unmarshal(quoted, &name); err != nil {
				return nil, fmt.Errorf("%w: a name: %w", errBody, err)
			}
		}
		switch {
		case b.get(name) != nil:
			return nil, fmt.Errorf("%w: %.80q comes twice", errBody, name)
		case len(b.fields) == maxFields:
			return nil, fmt.Errorf("%w: it has more than %d fields", errBody, maxFields)
		}
		b.fields = append(b.fields, field{name, value})
	}
	if s.space(); s.at != len(raw) {
		return nil, fmt.Errorf("%w: something follows it at byte %d", errBody, s.at)
	}
	return b, nil
}

// get returns a field's value as it is written, nil if there is none.
func (b *body) get(name string) []byte {
	for i := range b.fields {
		if b.fields[i].name == name {
			return b.fields[i].value
		}
	}
	return nil
}

// given tells whether a field is there and not null.
func (b *body) given(name string) bool {
	value := b.get(name)
	return value != nil && string(value) != "null"
}

// text returns a field's text, empty if it is none.
func (b *body) text(name string) string {
	var text string
	if value := b.get(name); len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) != nil {
		return ""
	}
	return text
}

// isTrue tells whether a field is true.
func (b *body) isTrue(name string) bool { return string(b.get(name)) == "true" }

// integer returns a field's number, or what to take if it is none.
func (b *body) integer(name string, otherwise int) int {
	if n, err := strconv.Atoi(string(b.get(name))); err == nil {
		return n
	}
	return otherwise
}

// with returns the object with some fields set, in place of those of their names, and
// those with nil left out.
func (b *body) with(changes ...field) []byte {
	size := len(b.raw)
	for _, c := range changes {
		size += len(c.name) + len(c.value) + 8
	}
	out := append(make([]byte, 0, size), '{')
	add := func(f field) {
		if f.value == nil {
			return
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(appendText(out, f.name), ':'), f.value...)
	}
	for _, f := range b.fields {
		if i := slices.IndexFunc(changes, func(c field) bool { return c.name == f.name }); i >= 0 {
			f.value = changes[i].value
		}
		add(f)
	}
	for _, c := range changes {
		if b.get(c.name) == nil {
			add(c)
		}
	}
	return append(out, '}')
}

// appendText appends a JSON string.
func appendText(dst []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic("BUG: a string has no JSON: " + err.Error())
	}
	return append(dst, quoted...)
}

// eachOf visits the values of a list until visit says no. It is true when the list was read to
// its end.
func eachOf(list []byte, visit func(value []byte) bool) bool {
	s := scanner{raw: list}
	if !s.take('[') {
		return false
	}
	for first := true; !s.take(']'); first = false {
		if !first && !s.take(',') {
			return false
		}
		if value := s.value(); len(value) == 0 || !visit(value) {
			return false
		}
	}
	return true
}

// scanner goes over JSON by its quotes and brackets. It takes some things for JSON that
// are not; whoever reads the values sees that.
type scanner struct {
	raw []byte
	at  int
}

func (s *scanner) space() {
	for s.at < len(s.raw) && (s.raw[s.at] == ' ' || s.raw[s.at] == '\n' || s.raw[s.at] == '\t' || s.raw[s.at] == '\r') {
		s.at++
	}
}

// take goes over a character, if it is the next.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.at < len(s.raw) && s.raw[s.at] == c {
		s.at++
		return true
	}
	return false
}

// value goes over a value and returns it, nil if there is none whole.
func (s *scanner) value() []byte {
	s.space()
	start := s.at
	if s.at == len(s.raw) {
		return nil
	}
	switch s.raw[s.at] {
	case '"':
		if !s.text() {
			return nil
		}
	case '{', '[':
		if !s.nested() {
			return nil
		}
	default:
		for s.at < len(s.raw) && isScalar(s.raw[s.at]) {
			s.at++
		}
	}
	if s.at == start {
		return nil
	}
	return s.raw[start:s.at]
}

func isScalar(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '+' || c == '.'
}

// text goes over a string.
func (s *scanner) text() bool {
	for s.at++; ; {
		end := bytes.IndexByte(s.raw[s.at:], '"')
		if end < 0 {
			return false
		}
		escapes := 0
		for end-escapes > 0 && s.raw[s.at+end-escapes-1] == '\\' {
			escapes++
		}
		// The opening quote is no escape; what is before s.at was looked at.
		s.at += end + 1
		if escapes%2 == 0 {
			return true
		}
	}
}

// nested goes over an object or an array.
func (s *scanner) nested() bool {
	for depth := 0; s.at < len(s.raw); {
		switch s.raw[s.at] {
		case '"':
			if !s.text() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				s.at++
				return true
			}
		}
		// Lists of token ids are long, and nothing else in them matters.
		for s.at++; s.at < len(s.raw) && s.raw[s.at] <= '9' && s.raw[s.at] != '"'; {
			s.at++
		}
	}
	return false
}
