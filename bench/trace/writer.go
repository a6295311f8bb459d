package trace

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
)

// Writer writes requests as Reader reads them.
type Writer struct {
	out  *bufio.Writer
	line []byte
	last int64
}

// NewWriter writes to out; the caller calls Flush at the end.
func NewWriter(out io.Writer) *Writer { return &Writer{out: bufio.NewWriter(out)} }

// Write appends a request; one that a Reader would refuse is an error.
func (w *Writer) Write(r *Request) error {
	if err := r.check(); err != nil {
		return err
	}
	if r.TimestampMS < w.last {
		return fmt.Errorf("%w: %d is before %d", ErrOrder, r.TimestampMS, w.last)
	}
	w.last = r.TimestampMS
	b := append(w.line[:0], `{"timestamp": `...)
	b = strconv.AppendInt(b, r.TimestampMS, 10)
	b = append(b, `, "input_length": `...)
	b = strconv.AppendInt(b, r.InputTokens, 10)
	b = append(b, `, "output_length": `...)
	b = strconv.AppendInt(b, r.OutputTokens, 10)
	b = append(b, `, "hash_ids": [`...)
	for i, id := range r.HashIDs {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, id, 10)
	}
	w.line = append(b, "]}\n"...)
	if _, err := w.out.Write(w.line); err != nil {
		return fmt.Errorf("writing a trace: %w", err)
	}
	return nil
}

// Flush writes what is buffered.
func (w *Writer) Flush() error {
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("writing a trace: %w", err)
	}
	return nil
}
