package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// BlockTokens is the tokens that one hash id stands for; a prompt's last block
// may have fewer.
const BlockTokens = 512

// Limits of one request.
const (
	maxLineBytes = 4 << 20
	maxBlocks    = 1 << 17
	maxTokens    = maxBlocks * BlockTokens
	maxID        = 1<<53 - 1 // exact in every JSON reader
	// maxTimestamp is some 139 years: in nanoseconds it still fits into 63 bits.
	maxTimestamp = 1<<42 - 1
)

// Request is one line of a trace.
type Request struct {
	// TimestampMS is the arrival in milliseconds from the trace's begin.
	TimestampMS  int64
	InputTokens  int64
	OutputTokens int64
	// HashIDs are the prompt's blocks, distinct; BlockTokens each.
	HashIDs []int64
}

// ErrRequest: a line is no request.
var ErrRequest = errors.New("not a request")

// What a line that is no request suffers from, each an ErrRequest.
var (
	ErrTruncated = fmt.Errorf("%w: the line ends too early", ErrRequest)
	ErrBlocks    = fmt.Errorf("%w: field \"hash_ids\"", ErrRequest)
	ErrOrder     = fmt.Errorf("%w: field \"timestamp\"", ErrRequest)
	ErrUnknown   = fmt.Errorf("%w: unknown field", ErrRequest)
)

// number is an integer without sign, fraction and exponent.
type number int64

// UnmarshalJSON implements json.Unmarshaler; null and 1.0 are no numbers here.
func (n *number) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 53)
	if err != nil {
		return fmt.Errorf("%s is no whole number from 0 to %d", clip(text), int64(maxID))
	}
	*n = number(v)
	return nil
}

// clip keeps an error message short.
func clip(text []byte) string {
	const most = 40
	if len(text) <= most {
		return string(text)
	}
	return string(text[:most]) + "..."
}

// parse reads one line. Errors name the field. Unknown fields go to unknown; if
// that is nil they are an error.
func parse(line []byte, unknown func(field string)) (Request, error) {
	var r Request
	seen := map[string]bool{}
	d := json.NewDecoder(bytes.NewReader(line))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return r, syntax(err, "want an object {...}")
	}
	for d.More() {
		token, err := d.Token()
		field, isText := token.(string)
		if err != nil || !isText {
			return r, syntax(err, "want a field's name")
		}
		if seen[field] {
			return r, fmt.Errorf("%w: field %q stands there twice", ErrRequest, field)
		}
		seen[field] = true
		if err := r.readField(d, field, unknown); err != nil {
			return r, err
		}
	}
	if _, err := d.Token(); err != nil {
		return r, syntax(err, "the object has no end")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, fmt.Errorf("%w: more than one object in the line", ErrRequest)
	}
	for _, field := range []string{"timestamp", "input_length", "output_length", "hash_ids"} {
		if !seen[field] {
			return r, fmt.Errorf("%w: field %q is missing", ErrRequest, field)
		}
	}
	err := r.check()
	return r, err
}

func (r *Request) readField(d *json.Decoder, field string, unknown func(field string)) error {
	var n number
	var err error
	switch field {
	case "timestamp":
		err = d.Decode(&n)
		r.TimestampMS = int64(n)
	case "input_length":
		err = d.Decode(&n)
		r.InputTokens = int64(n)
	case "output_length":
		err = d.Decode(&n)
		r.OutputTokens = int64(n)
	case "hash_ids":
		var ids []number
		err = d.Decode(&ids)
		r.HashIDs = make([]int64, len(ids))
		for i, id := range ids {
			r.HashIDs[i] = int64(id)
		}
	default:
		if unknown == nil {
			return fmt.Errorf("%w %q", ErrUnknown, clip([]byte(field)))
		}
		unknown(clip([]byte(field)))
		var skipped json.RawMessage
		err = d.Decode(&skipped)
	}
	if err != nil {
		return syntax(err, fmt.Sprintf("field %q", field))
	}
	return nil
}

// syntax tells a line that was cut off from one that is wrong.
func syntax(err error, want string) error {
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s", ErrTruncated, want)
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrRequest, want, err)
	}
	return fmt.Errorf("%w: %s", ErrRequest, want)
}

// check looks at what no field can tell alone.
func (r *Request) check() error {
	if r.TimestampMS < 0 || r.TimestampMS > maxTimestamp {
		return fmt.Errorf("%w: field \"timestamp\": %d ms, at most %d are read", ErrRequest, r.TimestampMS, int64(maxTimestamp))
	}
	if r.InputTokens == 0 {
		return fmt.Errorf("%w: field \"input_length\": a prompt has at least one token", ErrRequest)
	}
	if r.InputTokens > maxTokens {
		return fmt.Errorf("%w: field \"input_length\": %d tokens, at most %d are read", ErrRequest, r.InputTokens, maxTokens)
	}
	if want := (r.InputTokens + BlockTokens - 1) / BlockTokens; int64(len(r.HashIDs)) != want {
		return fmt.Errorf("%w: %d ids, the %d tokens of input_length have %d blocks", ErrBlocks, len(r.HashIDs), r.InputTokens, want)
	}
	places := make(map[int64]int, len(r.HashIDs))
	for i, id := range r.HashIDs {
		if before, twice := places[id]; twice {
			return fmt.Errorf("%w: id %d stands at %d and at %d", ErrBlocks, id, before, i)
		}
		places[id] = i
	}
	return nil
}
