package client

import (
	"errors"
	"fmt"
)

// Kind says how a request failed.
type Kind string

// Kinds of failures.
const (
	// Unreachable: no connection, or it ended before an answer began.
	Unreachable Kind = "unreachable"
	// Refused: the server is overloaded and said so (429, 503).
	Refused Kind = "refused"
	// BadRequest: another status from 400 to 499.
	BadRequest Kind = "bad request"
	// ServerError: any other status that is not 200.
	ServerError Kind = "server error"
	// Garbage: an answer that is no stream of completions.
	Garbage Kind = "garbage"
	// CutOff: the stream ended before its closing mark.
	CutOff Kind = "cut off"
	// Stalled: no token for longer than the limit.
	Stalled Kind = "stalled"
	// Failed: the server ended the request with an error in the stream.
	Failed Kind = "failed"
	// WrongLength: fewer or more tokens than asked for, in or out.
	WrongLength Kind = "wrong length"
	// Interrupted: the run ended first.
	Interrupted Kind = "interrupted"
)

// Error is a failed request.
type Error struct {
	Kind Kind
	// Status of the answer, 0 without one.
	Status int
	Err    error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("%s: status %d: %v", e.Kind, e.Status, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.Kind, e.Err)
}

// Unwrap implements errors.Unwrap.
func (e *Error) Unwrap() error { return e.Err }

// KindOf is the kind of an error of this package.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unreachable
}

func fail(kind Kind, err error) error { return &Error{Kind: kind, Err: err} }
