package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Limits of a stream.
const (
	maxEventBytes = 1 << 20
	// maxBytesPerToken, over a stream; an event of a token has some 300 bytes.
	maxBytesPerToken = 4 << 10
	// maxOtherBytes are a stream's besides.
	maxOtherBytes = 1 << 20
)

// errTooLong: more than a stream may have.
var errTooLong = errors.New("the server sends more than it was asked for")

// events reads server-sent events: what follows "data:", several lines of it joined
// as the standard says, up to an empty line. Comments and other fields are skipped.
type events struct {
	lines *bufio.Scanner
	data  []byte
	left  int
}

// newEvents reads a stream of at most limit bytes.
func newEvents(stream io.Reader, limit int) *events {
	e := &events{lines: bufio.NewScanner(stream), left: limit}
	e.lines.Buffer(nil, maxEventBytes)
	return e
}

// next returns the next event's data, valid until the call after; io.EOF at the
// stream's end, where an event without its empty line is none.
func (e *events) next() ([]byte, error) {
	e.data = e.data[:0]
	some := false
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if e.left -= len(line) + 1; e.left < 0 {
			return nil, errTooLong
		}
		if len(line) == 0 {
			if some {
				return e.data, nil
			}
			continue
		}
		text, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		if some {
			e.data = append(e.data, '\n')
		}
		some = true
		e.data = append(e.data, bytes.TrimPrefix(text, []byte(" "))...)
		if len(e.data) > maxEventBytes {
			return nil, fmt.Errorf("%w: an event of more than %d bytes", errTooLong, maxEventBytes)
		}
	}
	if err := e.lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

// isTooLong tells whether a stream broke a limit.
func isTooLong(err error) bool {
	return errors.Is(err, errTooLong) || errors.Is(err, bufio.ErrTooLong)
}
