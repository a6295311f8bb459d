package trace

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadAllLeavesOut(t *testing.T) {
	put := func(old, with string) string { return strings.Replace(goodLine, old, with, 1) }
	lines := []string{
		goodLine,
		goodLine[:40],
		put(": 5", ": 4"),
		put("[3, 9]", "[3]"),
		put(`"timestamp"`, `"chat_id": {"a": [1]}, "timestamp"`),
		"",
		put("600", "null"),
		put(": 5", ": 9007199254740991"), // later ones are not before it
		put(": 5", ": 6"),
		goodLine[:len(goodLine)-1],
	}
	requests, faults, err := ReadAll(strings.NewReader(strings.Join(lines, "\n")), "t", 0)
	if err != nil {
		t.Fatal(err)
	}
	var kept []int
	for _, r := range requests {
		kept = append(kept, r.Line)
	}
	if want := []int{1, 5, 9}; !slices.Equal(kept, want) {
		t.Errorf("kept lines %v, want %v", kept, want)
	}
	want := []Fault{
		{2, Truncated, ErrTruncated, true},
		{3, BadOrder, ErrOrder, true},
		{4, BadBlocks, ErrBlocks, true},
		{5, UnknownField, ErrUnknown, false},
		{6, Malformed, ErrRequest, true},
		{7, Malformed, ErrRequest, true},
		{8, Malformed, ErrRequest, true},
		{10, Truncated, ErrTruncated, true},
	}
	if len(faults) != len(want) {
		t.Fatalf("faults %v", faults)
	}
	for i, w := range want {
		f := faults[i]
		if f.Line != w.Line || f.Kind != w.Kind || f.Dropped != w.Dropped || !errors.Is(f.Err, w.Err) {
			t.Errorf("fault %d: %+v, want %+v", i, f, w)
		}
		if dropped := strings.Contains(f.Err.Error(), ErrRequest.Error()); dropped != w.Dropped {
			t.Errorf("fault %d says that the line is no request: %v, want %v: %v", i, dropped, w.Dropped, f.Err)
		}
	}
}

func TestReadAllEnds(t *testing.T) {
	two := goodLine + "\n" + goodLine + "\n"
	if requests, _, err := ReadAll(strings.NewReader(two), "t", 1); err != nil || len(requests) != 1 {
		t.Errorf("with a limit: %d requests, %v", len(requests), err)
	}
	if _, _, err := ReadAll(strings.NewReader(""), "t", 0); err == nil {
		t.Error("an empty file is no error")
	}
	broken := io.MultiReader(strings.NewReader(two), iotest.ErrReader(io.ErrClosedPipe))
	if requests, _, err := ReadAll(broken, "t", 0); !errors.Is(err, io.ErrClosedPipe) || len(requests) != 2 {
		t.Errorf("a broken file: %d requests, %v", len(requests), err)
	}
	long := two + strings.Repeat(" ", maxLineBytes+1) + "\n" + goodLine
	if requests, _, err := ReadAll(strings.NewReader(long), "t", 0); !errors.Is(err, ErrRequest) || len(requests) != 2 {
		t.Errorf("a long line: %d requests, %v", len(requests), err)
	}
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	for _, r := range []Request{{5, 600, 0, []int64{3, 9}}, {7, 1, 4, []int64{0}}} {
		if err := w.Write(&r); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []Request{{6, 600, 0, []int64{3, 9}}, {8, 600, 0, []int64{3}}, {8, 0, 0, nil}} {
		if err := w.Write(&bad); !errors.Is(err, ErrRequest) {
			t.Errorf("%+v was written: %v", bad, err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	want := goodLine + "\n" + `{"timestamp": 7, "input_length": 1, "output_length": 4, "hash_ids": [0]}` + "\n"
	if out.String() != want {
		t.Errorf("wrote\n%s, want\n%s", &out, want)
	}
}

func FuzzReadAll(f *testing.F) {
	f.Add([]byte(goodLine + "\n" + goodLine[:30] + "\n" + goodLine))
	f.Add([]byte(`{"x": {"y": [1]}, "timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		requests, faults, _ := ReadAll(bytes.NewReader(text), "t", 0)
		lines, line, last := bytes.Count(text, []byte("\n"))+1, 0, int64(0)
		for _, r := range requests {
			if r.Line <= line || r.Line > lines || r.TimestampMS < last || r.check() != nil {
				t.Fatalf("let through: %+v", r)
			}
			line, last = r.Line, r.TimestampMS
		}
		for _, fault := range faults {
			if fault.Line < 1 || fault.Line > lines || !errors.Is(fault.Err, ErrRequest) {
				t.Fatalf("fault %+v", fault)
			}
		}
	})
}
