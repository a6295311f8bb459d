package api

import (
	"errors"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// value is one value of a request's body, in whichever encoding: what a body means is
// written down once. A value is read in order, and once: by one of its methods.
type value interface {
	// null reads a null, and returns false when the value is none.
	null() bool
	text() (string, error)
	integer() (int64, error)
	// tokens appends token ids, little-endian in 32 bits. Where the body has them so, the
	// result may be a part of the body.
	tokens(dst []byte) ([]byte, error)
	hashes(dst []kvevents.Hash) ([]kvevents.Hash, error)
	// elements is how many the list that follows may have: it has no more, if it is one.
	elements() int
	// object calls visit for each field. strict: the encoding's contract refuses fields that
	// nobody knows; else names that differ in case alone are the same.
	object(visit func(name string, v value) error) error
	array(visit func(i int, v value) error) error
	skip() error
	// mark is where the value begins, and reset goes back there.
	mark() int
	reset(mark int)
	strict() bool
}

// errSyntax: the body is no JSON, or no msgpack.
var errSyntax = errors.New("not well-formed")

func syntaxErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errSyntax, fmt.Sprintf(format, args...))
}

func isSyntax(err error) bool { return errors.Is(err, errSyntax) }

// typeError is a value that is well-formed and of another type.
type typeError struct{ want, got string }

func (e *typeError) Error() string { return "want " + e.want + ", got " + e.got }

// rangeError is a number that is out of range, or a text that is no value.
type rangeError struct{ text string }

func (e *rangeError) Error() string { return e.text }

// elementError says which element of a list is wrong.
type elementError struct {
	index int
	err   error
}

func (e *elementError) Error() string { return fmt.Sprintf("[%d]: %v", e.index, e.err) }
func (e *elementError) Unwrap() error { return e.err }

// fieldError is what is wrong with a field, with what it was found from.
type fieldError struct {
	contract.FieldError
	cause error
}

func (e *fieldError) Unwrap() []error { return []error{&e.FieldError, e.cause} }

// inField makes an error of a field's value one that callers can read.
func inField(name string, err error) error {
	var wrongType *typeError
	var wrongRange *rangeError
	var known *contract.FieldError
	switch {
	case err == nil, errors.Is(err, errSyntax), errors.As(err, &known):
		return err
	case errors.As(err, &wrongType):
		return &fieldError{contract.FieldError{Field: name, Reason: reasonType, Text: err.Error()}, err}
	case errors.As(err, &wrongRange):
		return &fieldError{contract.FieldError{Field: name, Reason: reasonRange, Text: err.Error()}, err}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// Reasons of field errors.
const (
	reasonMissing = "missing"
	reasonType    = "invalid_type"
	reasonValue   = "invalid_value"
	reasonRange   = "out_of_range"
	reasonUnknown = "unknown_field"
)

// maxTextBytes bounds a name, a salt or an endpoint.
const maxTextBytes = 1024

// optionalText reads a text into dst; null is "".
func optionalText(v value, dst *string) (err error) {
	if v.null() {
		*dst = ""
		return nil
	}
	if *dst, err = v.text(); err == nil && len(*dst) > maxTextBytes {
		return &rangeError{fmt.Sprintf("%d bytes; at most %d", len(*dst), maxTextBytes)}
	}
	return err
}

// number is an integer that may not be there.
type number struct {
	n     int64
	given bool
}

func (n *number) read(v value) (err error) {
	*n = number{}
	if v.null() {
		return nil
	}
	n.n, err = v.integer()
	n.given = err == nil
	return err
}

// blockSize is block_size; 0 when it was left out, and each engine's own is meant.
func (n *number) blockSize() (int, error) {
	if n.given && (n.n < 1 || n.n > maxBlockTokens) {
		return 0, &contract.FieldError{Field: "block_size", Reason: reasonRange, Text: fmt.Sprintf("%d; want 1 to %d", n.n, maxBlockTokens)}
	}
	return int(n.n), nil
}

// maxBlockTokens is more than any engine has in a block.
const maxBlockTokens = 1 << 24
