package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay"
)

func TestBar(t *testing.T) {
	var out bytes.Buffer
	b := newBar(&out)
	for s := range 35 {
		b.show(replay.Progress{Requests: 70, Sent: 2*s + 1, Done: 2 * s, Failed: s, Elapsed: time.Duration(s) * time.Second})
	}
	b.end()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || lines[0] != "["+strings.Repeat("=", 8)+strings.Repeat(" ", 22)+"] 20 of 70, 1 under way, 10 failed; first token 0s (p50), 0s (p99); 10s" {
		t.Errorf("where nothing can be drawn over:\n%s", &out)
	}
	out.Reset()
	b = &bar{out: &out, terminal: true}
	b.show(replay.Progress{})
	b.show(replay.Progress{Requests: 2, Sent: 2, Done: 2})
	b.end()
	if text := out.String(); strings.Count(text, "\r\x1b[K") != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, strings.Repeat("=", barWidth)+"] 2 of 2") {
		t.Errorf("on a terminal: %q", text)
	}
}
