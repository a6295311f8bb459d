package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay"
)

// barWidth in characters, and how often a line is written where nothing can be
// drawn over.
const (
	barWidth      = 30
	plainBarPause = 10 * time.Second
)

// bar shows a replay's progress: drawn over itself on a terminal, a line now and
// then elsewhere.
type bar struct {
	out      io.Writer
	terminal bool
	next     time.Duration
	drawn    bool
}

func newBar(out io.Writer) *bar {
	b := &bar{out: out, next: plainBarPause}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		b.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return b
}

func (b *bar) show(p replay.Progress) {
	full := 0
	if p.Requests > 0 {
		full = barWidth * p.Done / p.Requests
	}
	text := fmt.Sprintf("[%s%s] %d of %d, %d under way, %d failed; first token %v (p50), %v (p99); %v",
		strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), p.Done, p.Requests, p.Sent-p.Done, p.Failed,
		p.P50.Round(time.Millisecond), p.P99.Round(time.Millisecond), p.Elapsed.Round(time.Second))
	switch {
	case b.terminal:
		fmt.Fprintf(b.out, "\r\x1b[K%s", text)
		b.drawn = true
	case p.Elapsed >= b.next:
		b.next = p.Elapsed + plainBarPause
		fmt.Fprintln(b.out, text)
	}
}

// end leaves the bar behind.
func (b *bar) end() {
	if b.drawn {
		fmt.Fprintln(b.out)
	}
}
