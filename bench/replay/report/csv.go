package report

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
)

// maxRows bounds a file of requests that is read.
const maxRows = 1 << 22

// columns of the file of requests; times in milliseconds from the replay's begin,
// empty for what did not happen.
func columns() []string {
	return []string{
		"line", "due_ms", "sent_ms", "first_token_ms", "end_ms", "ttft_ms", "tail_tbt_ms", "max_gap_ms", "prompt_tokens", "wanted_tokens", "output_tokens",
		"cached_tokens", "must_be_cached", "may_be_cached", "cached_in_order", "error",
	}
}

// Of the columns, those that are read again.
const (
	lineColumn   = 0
	ttftColumn   = 5
	cachedColumn = 11
	mustColumn   = 12
	errColumn    = 15
)

// WriteCSV writes a line for each request.
func (r *Report) WriteCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	_ = w.Write(columns()) // the error is the flush's
	for i := range r.outcomes {
		o := &r.outcomes[i]
		_ = w.Write([]string{
			strconv.Itoa(o.Line), ms(o.Due), ms(o.Sent), ms(o.First), ms(o.End), ms(o.TTFT()), ms(o.TailGap), ms(o.MaxGap),
			strconv.Itoa(o.PromptTokens), strconv.Itoa(o.WantTokens), strconv.Itoa(o.OutputTokens), known(o.CachedTokens),
			strconv.Itoa(o.Must), strconv.Itoa(o.May), strconv.Itoa(o.InOrder), failure(o),
		})
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return fmt.Errorf("writing the requests: %w", err)
	}
	return nil
}

func ms(d time.Duration) string {
	if d == record.Never {
		return ""
	}
	return strconv.FormatFloat(milli(d), 'f', 3, 64)
}

func known(n int) string {
	if n == client.Unknown {
		return ""
	}
	return strconv.Itoa(n)
}

func failure(o *record.Outcome) string {
	if o.Err == nil {
		return ""
	}
	return string(client.KindOf(o.Err))
}

// ErrBaseline: a file that is no replay's file of requests.
var ErrBaseline = errors.New("not a replay's file of requests")

// Request is a row of a replay's file of requests.
type Request struct {
	// Line of the trace.
	Line int
	// TTFTms is the time to first token in milliseconds, of failed requests NaN.
	TTFTms float64
	// CachedTokens are client.Unknown where the server does not tell.
	CachedTokens, MustTokens int
	Failed                   bool
}

// ReadRequests reads what WriteCSV wrote.
func ReadRequests(in io.Reader) ([]Request, error) {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBaseline, err)
	}
	want := columns()
	for i, name := range header {
		if len(header) != len(want) || name != want[i] {
			return nil, fmt.Errorf("%w: its columns are others", ErrBaseline)
		}
	}
	var all []Request
	for rows := 0; ; rows++ {
		row, err := r.Read()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrBaseline, err)
		case rows == maxRows:
			return nil, fmt.Errorf("%w: more than %d rows", ErrBaseline, maxRows)
		}
		q, err := parseRequest(row)
		if err != nil {
			return nil, fmt.Errorf("%w: row %d: %w", ErrBaseline, rows+2, err)
		}
		all = append(all, q)
	}
}

// parseRequest reads a row that has as many cells as there are columns.
func parseRequest(row []string) (Request, error) {
	q := Request{TTFTms: math.NaN(), CachedTokens: client.Unknown, Failed: row[errColumn] != ""}
	var err error
	if q.Line, err = strconv.Atoi(row[lineColumn]); err != nil || q.Line < 1 {
		return q, fmt.Errorf("line %q", row[lineColumn])
	}
	if q.MustTokens, err = strconv.Atoi(row[mustColumn]); err != nil || q.MustTokens < 0 {
		return q, fmt.Errorf("must_be_cached %q", row[mustColumn])
	}
	if text := row[cachedColumn]; text != "" {
		if q.CachedTokens, err = strconv.Atoi(text); err != nil || q.CachedTokens < 0 {
			return q, fmt.Errorf("cached_tokens %q", text)
		}
	}
	if q.Failed {
		return q, nil
	}
	if q.TTFTms, err = strconv.ParseFloat(row[ttftColumn], 64); err != nil || !(q.TTFTms >= 0 && q.TTFTms < 1e12) {
		return q, fmt.Errorf("ttft_ms %q", row[ttftColumn])
	}
	return q, nil
}

// Baseline is the times to first token of an earlier replay, in milliseconds by
// line of the trace; of failed requests there is none.
type Baseline map[int]float64

// ReadBaseline reads what WriteCSV wrote.
func ReadBaseline(in io.Reader) (Baseline, error) {
	all, err := ReadRequests(in)
	if err != nil {
		return nil, err
	}
	b := Baseline{}
	for i := range all {
		if q := &all[i]; !q.Failed {
			b[q.Line] = q.TTFTms
		}
	}
	return b, nil
}
