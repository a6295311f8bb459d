package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Reader reads a trace's requests in order.
type Reader struct {
	name  string
	lines *bufio.Scanner
	line  int
	last  int64 // timestamp
	err   error
	// unknown is told of unknown fields; nil refuses them.
	unknown func(field string)
}

// NewReader reads from in, which errors call name.
func NewReader(in io.Reader, name string) *Reader {
	r := &Reader{name: name, lines: bufio.NewScanner(in)}
	r.lines.Buffer(nil, maxLineBytes)
	return r
}

// Next returns the next request, or io.EOF after the last. After an error there
// is no next one.
func (r *Reader) Next() (Request, error) {
	if r.err != nil {
		return Request{}, r.err
	}
	request, err := r.next()
	r.err = err
	return request, err
}

// Line is the number of the line that Next read last, from 1.
func (r *Reader) Line() int { return r.line }

func (r *Reader) next() (Request, error) {
	if !r.lines.Scan() {
		err := r.lines.Err()
		switch {
		case err == nil && r.line == 0:
			return Request{}, fmt.Errorf("%s: %w: the file is empty", r.name, ErrRequest)
		case err == nil:
			return Request{}, io.EOF
		case errors.Is(err, bufio.ErrTooLong):
			return Request{}, fmt.Errorf("%s:%d: %w: the line is longer than %d bytes", r.name, r.line+1, ErrRequest, maxLineBytes)
		}
		return Request{}, fmt.Errorf("%s:%d: %w", r.name, r.line+1, err)
	}
	r.line++
	line := r.lines.Bytes()
	if len(bytes.TrimSpace(line)) == 0 {
		return Request{}, fmt.Errorf("%s:%d: %w: the line is empty", r.name, r.line, ErrRequest)
	}
	request, err := parse(line, r.unknown)
	if err != nil {
		return Request{}, fmt.Errorf("%s:%d: %w", r.name, r.line, err)
	}
	if request.TimestampMS < r.last {
		return Request{}, fmt.Errorf("%s:%d: %w: %d is before %d, the line above", r.name, r.line, ErrOrder, request.TimestampMS, r.last)
	}
	r.last = request.TimestampMS
	return request, nil
}
