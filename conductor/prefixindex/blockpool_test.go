package prefixindex

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// recordedLine is a line of what testdata/record.py writes.
type recordedLine struct {
	Batch, Prompt, Salt string
	Held                int
}

// vLLM's own block pool, with copies, evictions and resets: the index says of every
// prompt what the pool has, no block more and none less. Where the engine reports
// reuse, a copy that was made from a prompt's beginning looks like it: then the index
// may say too little now and then, and never too much.
func TestAgainstBlockPool(t *testing.T) {
	for mode, reported := range map[string]bool{"incremental": false, "full": true} {
		t.Run(mode, func(t *testing.T) {
			file, err := os.Open("testdata/blockpool." + mode + ".jsonl")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			x := New(Options{Seed: 1})
			src := x.Open(Origin{Model: "m", Instance: "a", ReusesReported: reported})
			d := kvevents.NewDecoder()
			lines := bufio.NewScanner(file)
			lines.Buffer(nil, 1<<20)
			asked, hits, short := 0, 0, 0
			for n := 1; lines.Scan(); n++ {
				var line recordedLine
				if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
					t.Fatal(err)
				}
				switch {
				case line.Batch != "":
					payload, err := hex.DecodeString(line.Batch)
					if err != nil {
						t.Fatal(err)
					}
					batch, refused, err := d.Decode(payload)
					if err != nil || refused != 0 {
						t.Fatalf("line %d: %d refused, %v", n, refused, err)
					}
					src.Apply(batch)
				case line.Prompt != "":
					asked++
					hits += min(line.Held, 1)
					switch held := heldOf(x, &line); {
					case held > line.Held || held < line.Held && !reported:
						t.Errorf("line %d: %s %s: %d blocks, the pool has %d", n, line.Salt, line.Prompt, held, line.Held)
					case held < line.Held:
						short++
					}
				}
			}
			if err := x.check(); err != nil {
				t.Error(err)
			}
			s := src.Stats()
			if lines.Err() != nil || short > 5 || asked < 900 || hits < 300 || s.Clears < 2 || s.Unknown+s.Unplaced+s.Ignored > 0 || s.Again == 0 || reported != (s.Reported > 0) {
				t.Errorf("%d prompts, %d with a hit, %d short, %+v, %v", asked, hits, short, s, lines.Err())
			}
		})
	}
}

// heldOf asks for a prompt of a recording.
func heldOf(x *Index, line *recordedLine) int {
	var tokens []uint32
	for _, letter := range line.Prompt {
		token := uint32(1)
		if letter == 'b' {
			token = 70000
		}
		tokens = append(tokens, token, token, token, token)
	}
	held := 0
	for _, m := range x.Query(&Query{Model: "m", Salt: line.Salt, BlockTokens: 4, Tokens: littleEndian(tokens)}, nil) {
		held = m.In[GPU] / 4
	}
	return held
}
