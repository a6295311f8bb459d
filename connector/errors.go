package connector

import (
	"errors"
	"fmt"
)

// ErrFrameTooLong reports a frame beyond the reader's limit. The stream can't be
// read any further.
var ErrFrameTooLong = errors.New("frame too long")

// MalformedError reports a frame that does not parse or has a field out of
// range.
type MalformedError struct {
	// Type is the frame's type, as far as it was readable.
	Type string
	// Job is the job that a store or load frame names, 0 when none is known.
	// With a job the session can go on: the frame boundary is intact.
	Job uint64
	// Err says what is wrong.
	Err error
}

// Error implements error.
func (e *MalformedError) Error() string {
	switch {
	case e.Type == "":
		return fmt.Sprintf("malformed frame: %v", e.Err)
	case e.Job != 0:
		return fmt.Sprintf("malformed %s frame of job %d: %v", e.Type, e.Job, e.Err)
	}
	return fmt.Sprintf("malformed %s frame: %v", e.Type, e.Err)
}

// Unwrap returns the cause.
func (e *MalformedError) Unwrap() error { return e.Err }

// Message makes the error frame that answers e.
func (e *MalformedError) Message() *Error {
	return &Error{Type: TypeError, Code: CodeMalformed, Message: e.Error(), Job: e.Job}
}
