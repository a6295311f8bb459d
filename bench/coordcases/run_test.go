package coordcases_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
)

const find = `{"op":"find","groups":[{"kind":"full","b":4,"w":0,"eagle":false,"tag":0},{"kind":"swa","b":4,"w":5,"eagle":false,"tag":0}],"L":4,"h":4,"use_eagle":false,"fine":false,"N":4,"exists":[[0,0],[0,1],[0,2],[1,1],[1,2]],"M":16,"apply_eagle":true,"hit":1,"masks":"ignored"}`

const store = `{"op":"store_mask","groups":[{"kind":"full","b":4},{"kind":"sliding_window","b":4,"w":4}],"L":8,"h":4,"R":0,"T":16,"start":0,"nprompt":16}`

const lookup = `{"op":"lookup","groups":[{"kind":"full","b":4}],"L":4,"h":4,"N":4,"exists":null,"tokens":16}`

func TestRun(t *testing.T) {
	const want = `{"hit":12,"masks":[[1,1,1],[0,0,1]]}
{"masks":[null,[false,true,false,false]]}
{"hit":12,"tails":[[0,12]]}
`
	for name, input := range map[string]string{
		"lines":           find + "\n" + store + "\n" + lookup + "\n",
		"array":           "[" + find + ",\n" + store + "," + lookup + "]",
		"array and space": "\n\t [" + find + " ,\r\n" + store + "," + lookup + "]\n ",
		"no newline":      find + store + lookup,
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := coordcases.Run(strings.NewReader(input), &out); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func TestRunNothing(t *testing.T) {
	for _, input := range []string{"", "\n", "[]", " [ ] "} {
		var out bytes.Buffer
		if err := coordcases.Run(strings.NewReader(input), &out); err != nil || out.Len() != 0 {
			t.Errorf("%q: %q, %v", input, out.String(), err)
		}
	}
}

// TestRunUnservable: what the engine itself can't answer has an answer.
func TestRunUnservable(t *testing.T) {
	var out bytes.Buffer
	input := strings.Replace(lookup, `"kind":"full","b":4`, `"kind":"chunked","b":4,"w":8,"eagle":true`, 1)
	if err := coordcases.Run(strings.NewReader(input), &out); err != nil || !strings.Contains(out.String(), `{"error":"`) {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestRunRefuses(t *testing.T) {
	replace := func(old, new string) string {
		if !strings.Contains(find, old) {
			t.Fatalf("no %q", old)
		}
		return find + "\n" + strings.Replace(find, old, new, 1)
	}
	for name, test := range map[string]struct{ input, want string }{
		"op":           {replace(`"find"`, `"guess"`), `case 1: malformed case: op "guess"`},
		"kind":         {replace(`"full"`, `"circular"`), `"circular" is not known`},
		"no groups":    {replace(`"groups":[`, `"groups":[],"x":[`), "0 groups"},
		"block":        {replace(`"b":4`, `"b":0`), "group 0: b 0"},
		"window":       {replace(`"w":5`, `"w":-5`), "w -5"},
		"hashes":       {replace(`"N":4`, `"N":99999999`), "N is 99999999"},
		"tokens":       {replace(`"M":16`, `"M":-1`), "M is -1"},
		"many chunks":  {replace(`"M":16`, `"M":16777216`), "chunks, at most"},
		"group":        {replace(`[0,0]`, `[2,0]`), "exists has group 2"},
		"hash":         {replace(`[0,0]`, `[0,4]`), "exists has group 0, hash 4"},
		"retention":    {replace(`"N":4`, `"N":4,"R":-3`), "R is -3"},
		"prompt":       {replace(`"N":4`, `"N":4,"nprompt":-3`), "nprompt is -3"},
		"not aligned":  {strings.Replace(store, `"T":16`, `"T":12`, 1), "want a multiple of 8"},
		"cut":          {find[:40], "unexpected EOF"},
		"cut array":    {"[" + find, "EOF"},
		"no object":    {"7", "cannot unmarshal"},
		"behind array": {"[]" + find, "something follows"},
		"two arrays":   {"[" + find + "][]", "something follows"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := coordcases.Run(strings.NewReader(test.input), &out)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// endless is a case that never ends.
type endless struct{ begun bool }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	if !e.begun {
		p[0] = '{'
		e.begun = true
	}
	return len(p), nil
}

func TestRunTooLong(t *testing.T) {
	err := coordcases.Run(&endless{}, io.Discard)
	if !errors.Is(err, coordcases.ErrCase) || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("got %v", err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestRunBrokenStreams(t *testing.T) {
	if err := coordcases.Run(brokenReader{}, io.Discard); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("reader: %v", err)
	}
	if err := coordcases.Run(strings.NewReader(find), brokenWriter{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("writer: %v", err)
	}
	if err := coordcases.Run(strings.NewReader(strings.Repeat(find, 200)), brokenWriter{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("writer: %v", err)
	}
}

// FuzzRun: no input makes the decoder or the rules panic, and every answer is a
// line.
func FuzzRun(f *testing.F) {
	f.Add([]byte(find))
	f.Add([]byte(store))
	f.Add([]byte("[" + lookup + "," + find + "]"))
	if golden, err := os.ReadFile("../../testdata/golden/coordinator/vllm.jsonl"); err == nil {
		for line := range bytes.Lines(golden) {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		var out bytes.Buffer
		err := coordcases.Run(bytes.NewReader(input), &out)
		if out.Len() > 0 && out.Bytes()[out.Len()-1] != '\n' {
			t.Errorf("%q ends within a line, %v", out.String(), err)
		}
	})
}
