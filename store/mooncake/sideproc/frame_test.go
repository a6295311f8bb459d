package sideproc_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

func TestFrames(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // more than is read in a step
	stream := bytes.NewReader(append(sideproc.AppendFrame(7, sideproc.KindGet, body), sideproc.AppendFrame(8, sideproc.KindPing, nil)...))
	f, err := sideproc.ReadFrame(stream)
	if err != nil || f.Call() != 7 || f.Kind() != sideproc.KindGet || !bytes.Equal(f.Body(), body) {
		t.Fatalf("call %d, kind %d, %d bytes, %v", f.Call(), f.Kind(), len(f.Body()), err)
	}
	if f, err = sideproc.ReadFrame(stream); err != nil || f.Call() != 8 || len(f.Body()) != 0 {
		t.Fatalf("call %d, %d bytes, %v", f.Call(), len(f.Body()), err)
	}
	if _, err = sideproc.ReadFrame(stream); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	whole := sideproc.AppendFrame(1, 0, []byte("body"))
	for n := 1; n < len(whole); n++ {
		if _, err := sideproc.ReadFrame(bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		f    sideproc.Frame
		want string
	}{
		"too short":     {sideproc.NewFrame(1, sideproc.KindAnswers, make([]byte, 8)), "8 bytes of answers for 2 keys"},
		"too long":      {sideproc.NewFrame(1, sideproc.KindAnswers, make([]byte, 24)), "24 bytes of answers for 2 keys"},
		"refused":       {sideproc.NewFrame(1, sideproc.KindRefused, []byte("no such range\xff")), "no such range\ufffd"},
		"failed":        {sideproc.NewFrame(1, sideproc.KindFailed, []byte("RuntimeError: x")), "INTERNAL_ERROR (-1): RuntimeError: x"},
		"another thing": {sideproc.NewFrame(1, 77, nil), "kind 77"},
	} {
		if _, err := sideproc.AnswersOf(c.f, 2); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestSeverity(t *testing.T) {
	for line, want := range map[string]slog.Level{
		"I1121 22:40:18.637020  7471 x.cpp:1] a": slog.LevelDebug,
		"W1121 22:40:18.637020  7471 x.cpp:1] a": slog.LevelInfo,
		"E1121 22:40:18.637020  7471 x.cpp:1] a": slog.LevelWarn,
		"F1121 22:40:18.637020  7471 x.cpp:1] a": slog.LevelError,
		"Traceback (most recent call last):":     slog.LevelInfo,
		"E":                                      slog.LevelInfo,
	} {
		if got := sideproc.Severity(line); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// FuzzReadFrame: bytes from the process never panic, and are never more than they
// say.
func FuzzReadFrame(f *testing.F) {
	f.Add(sideproc.AppendFrame(1, sideproc.KindAnswers, make([]byte, 16)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 10})
	f.Add([]byte{5, 0, 0, 0, 1, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		stream := bytes.NewReader(data)
		for {
			frame, err := sideproc.ReadFrame(stream)
			if err != nil {
				return
			}
			if len(frame.Body()) > len(data) {
				t.Fatalf("a body of %d bytes from %d", len(frame.Body()), len(data))
			}
			answers, err := sideproc.AnswersOf(frame, len(frame.Body())/8)
			if err == nil && len(answers) != len(frame.Body())/8 {
				t.Fatalf("%d answers", len(answers))
			}
			for _, a := range answers {
				if code := a.Code(); a >= 0 && code != 0 || a < 0 && code >= 0 {
					t.Fatalf("answer %d has code %d", a, code)
				}
				_ = a.Code().String()
			}
		}
	})
}
