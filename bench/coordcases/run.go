package coordcases

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/mooncake-sidecar/sidecar/coordinator"
)

// maxCaseBytes bounds one case; the largest within the other limits is smaller
// but for white space.
const maxCaseBytes = 16 << 20

var errCaseTooLong = fmt.Errorf("%w: longer than %d bytes", ErrCase, maxCaseBytes)

// Decoder reads cases from a JSON array or from lines of JSON.
type Decoder struct {
	in    *limitReader
	json  *json.Decoder
	array bool
	begun bool
	count int
}

// NewDecoder returns a decoder over r.
func NewDecoder(r io.Reader) *Decoder {
	in := &limitReader{r: bufio.NewReader(r)}
	return &Decoder{in: in, json: json.NewDecoder(in)}
}

// Next returns the next case, or io.EOF behind the last.
func (d *Decoder) Next() (*Case, error) {
	if !d.begun {
		d.begun = true
		if err := d.begin(); err != nil {
			return nil, err
		}
	}
	// The decoder reads ahead by as much as it holds already.
	d.in.limit = d.json.InputOffset() + 2*maxCaseBytes
	if d.array && !d.json.More() {
		if _, err := d.json.Token(); err != nil {
			return nil, d.fail(err)
		}
		if _, err := d.json.Token(); err != io.EOF {
			return nil, fmt.Errorf("%w: something follows the array of %d cases", ErrCase, d.count)
		}
		return nil, io.EOF
	}
	var c Case
	if err := d.json.Decode(&c); err == io.EOF && !d.array {
		return nil, io.EOF
	} else if err != nil {
		return nil, d.fail(err)
	}
	d.count++
	return &c, nil
}

// begin looks whether the input is an array.
func (d *Decoder) begin() error {
	for {
		b, err := d.in.r.ReadByte()
		switch {
		case err == io.EOF:
			return nil // no case at all: Next finds the end
		case err != nil:
			return d.fail(err)
		case b == ' ' || b == '\t' || b == '\r' || b == '\n':
			continue
		}
		if err := d.in.r.UnreadByte(); err != nil {
			return d.fail(err)
		}
		d.in.limit = 2 * maxCaseBytes
		if d.array = b == '['; d.array {
			if _, err := d.json.Token(); err != nil {
				return d.fail(err)
			}
		}
		return nil
	}
}

func (d *Decoder) fail(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, ErrCase) {
		return fmt.Errorf("case %d: %w", d.count, err)
	}
	return fmt.Errorf("case %d: %w: %w", d.count, ErrCase, err)
}

// limitReader refuses to read beyond limit bytes.
type limitReader struct {
	r     *bufio.Reader
	read  int64
	limit int64
}

func (l *limitReader) Read(p []byte) (int, error) {
	if l.read >= l.limit {
		return 0, errCaseTooLong
	}
	n, err := l.r.Read(p)
	l.read += int64(n)
	return n, err
}

// Run answers every case of r on w, one line a case.
func Run(r io.Reader, w io.Writer) error {
	out := bufio.NewWriter(w)
	decoder := NewDecoder(r)
	var line []byte
	for i := 0; ; i++ {
		c, err := decoder.Next()
		if errors.Is(err, io.EOF) {
			return out.Flush()
		}
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		answer, err := c.Answer()
		switch {
		case err == nil:
			line = answer.AppendJSON(line[:0])
		case errors.Is(err, coordinator.ErrUnservable):
			line = appendError(line[:0], err)
		default:
			return errors.Join(fmt.Errorf("case %d: %w", i, err), out.Flush())
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("writing answer %d: %w", i, err)
		}
	}
}

func appendError(dst []byte, err error) []byte {
	text, _ := json.Marshal(map[string]string{"error": err.Error()})
	return append(dst, text...)
}
