package trace

import (
	"errors"
	"fmt"
	"io"
)

// maxRequests bounds what ReadAll keeps.
const maxRequests = 1 << 22

// Numbered is a request and the line it stands in, from 1.
type Numbered struct {
	Request
	Line int
}

// Kind says what is wrong with a line.
type Kind string

// Kinds.
const (
	Truncated    Kind = "truncated line"
	BadOrder     Kind = "decreasing timestamp"
	BadBlocks    Kind = "hash_ids do not fit"
	UnknownField Kind = "unknown field"
	Malformed    Kind = "malformed line"
)

// Fault is something wrong in a trace.
type Fault struct {
	Line int
	Kind Kind
	Err  error
	// Dropped: the line's request was left out.
	Dropped bool
}

// ReadAll reads up to limit requests, 0 for all. A line that is none is left out
// and an unknown field ignored, and each is in faults. err is what ended the
// reading early: the reader's error, a line too long to go on behind it, or too
// many requests; what was read before is returned with it.
func ReadAll(in io.Reader, name string, limit int) (requests []Numbered, faults []Fault, err error) {
	r := NewReader(in, name)
	r.unknown = func(field string) {
		faults = append(faults, Fault{Line: r.line, Kind: UnknownField, Err: &ignored{name, r.line, field}})
	}
	for limit == 0 || len(requests) < limit {
		before := r.line
		request, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return requests, faults, nil
		case err == nil && len(requests) == maxRequests:
			return requests, faults, fmt.Errorf("%s:%d: more than %d requests", name, r.line, maxRequests)
		case err == nil:
			requests = append(requests, Numbered{Request: request, Line: r.line})
		case errors.Is(err, ErrRequest) && r.line > before:
			faults = append(faults, Fault{Line: r.line, Kind: kindOf(err), Err: err, Dropped: true})
			r.err = nil
		default: // no line was read
			return requests, faults, err
		}
	}
	return requests, faults, nil
}

func kindOf(err error) Kind {
	for _, k := range []struct {
		class error
		kind  Kind
	}{{ErrTruncated, Truncated}, {ErrOrder, BadOrder}, {ErrBlocks, BadBlocks}} {
		if errors.Is(err, k.class) {
			return k.kind
		}
	}
	return Malformed
}

// ignored is an ErrUnknown beside which the line is a request all the same.
type ignored struct {
	name  string
	line  int
	field string
}

// Error implements error.
func (e *ignored) Error() string {
	return fmt.Sprintf("%s:%d: unknown field %q is ignored", e.name, e.line, e.field)
}

// Unwrap implements errors.Unwrap.
func (*ignored) Unwrap() error { return ErrUnknown }
