package trace

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

const goodLine = `{"timestamp": 5, "input_length": 600, "output_length": 0, "hash_ids": [3, 9]}`

func TestReader(t *testing.T) {
	r := NewReader(strings.NewReader(goodLine+"\n"+strings.Replace(goodLine, "[3, 9]", "[3, 4]", 1)), "t")
	for line, ids := range [][]int64{{3, 9}, {3, 4}} {
		got, err := r.Next()
		if err != nil || got.TimestampMS != 5 || got.InputTokens != 600 || got.OutputTokens != 0 || !slices.Equal(got.HashIDs, ids) || r.Line() != line+1 {
			t.Errorf("line %d: %+v, %v", r.Line(), got, err)
		}
	}
	for range 2 {
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	}
}

func TestReaderRefuses(t *testing.T) {
	put := func(old, with string) string { return strings.Replace(goodLine, old, with, 1) }
	for _, test := range []struct{ name, text, want string }{
		{"empty file", "", "t: "},
		{"empty line", goodLine + "\n\n" + goodLine, "t:2: "},
		{"no object", "[]", "t:1: "},
		{"cut off", goodLine[:len(goodLine)-4], `ends too early: field "hash_ids"`},
		{"cut off early", goodLine[:20], "ends too early"},
		{"two objects", goodLine + goodLine, "more than one"},
		{"unknown field", put(`"timestamp"`, `"chat_id": 1, "timestamp"`), `unknown field "chat_id"`},
		{"case", put("timestamp", "Timestamp"), `unknown field "Timestamp"`},
		{"missing", put(`"output_length": 0, `, ""), `field "output_length" is missing`},
		{"twice", put(`"output_length": 0`, `"output_length": 0, "output_length": 0`), `"output_length" stands there twice`},
		{"null", put("600", "null"), `field "input_length"`},
		{"fraction", put("600", "600.0"), `field "input_length"`},
		{"sign", put(": 5", ": -5"), `field "timestamp"`},
		{"timestamp of centuries", put(": 5", ": 4398046511104"), `field "timestamp": 4398046511104 ms`},
		{"text", put(`0, "hash`, `"0", "hash`), `field "output_length"`},
		{"huge", put("[3, 9]", "[3, 9007199254740992]"), `field "hash_ids"`},
		{"null id", put("[3, 9]", "[3, null]"), `field "hash_ids"`},
		{"too few ids", put("[3, 9]", "[3]"), `field "hash_ids": 1 ids, the 600 tokens of input_length have 2 blocks`},
		{"too many ids", put("600", "512"), `field "hash_ids": 2 ids`},
		{"id twice", put("[3, 9]", "[3, 3]"), "id 3 stands at 0 and at 1"},
		{"no tokens", put("600", "0"), `field "input_length"`},
		{"too many tokens", put("600", "70000000"), `field "input_length"`},
		{"back in time", goodLine + "\n" + put(": 5", ": 4"), `t:2: not a request: field "timestamp": 4 is before 5`},
		{"long line", put(`"timestamp"`, `"timestamp"`+strings.Repeat(" ", maxLineBytes)), "longer than"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := NewReader(strings.NewReader(test.text), "t")
			var err error
			for err == nil {
				_, err = r.Next()
			}
			if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if _, again := r.Next(); !errors.Is(again, err) {
				t.Errorf("after the error: %v", again)
			}
		})
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(goodLine))
	f.Add([]byte(goodLine + "\n" + goodLine[:30]))
	f.Add([]byte(`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := NewReader(strings.NewReader(string(text)), "t")
		for last := int64(0); ; {
			got, err := r.Next()
			if err != nil {
				return
			}
			if got.TimestampMS < last || got.InputTokens < 1 || int64(len(got.HashIDs)) != (got.InputTokens+BlockTokens-1)/BlockTokens {
				t.Fatalf("let through: %+v", got)
			}
			last = got.TimestampMS
		}
	})
}
