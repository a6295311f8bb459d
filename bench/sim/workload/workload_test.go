package workload

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

const text = `{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[0,1]}
{"timestamp":3000,"input_length":1024,"output_length":7,"hash_ids":[0,2]}
`

func TestRead(t *testing.T) {
	w, err := Read(strings.NewReader(text), "x")
	if err != nil {
		t.Fatal(err)
	}
	a, b := &w.Requests[0], &w.Requests[1]
	if len(w.Requests) != 2 || a.InputTokens != 600 || b.OutputTokens != 7 || b.Arrival != 3*time.Second {
		t.Errorf("read %+v", w)
	}
	if a.Blocks[0] != b.Blocks[0] || a.Blocks[1] == b.Blocks[1] || a.Blocks[0] == 0 {
		t.Errorf("blocks %x and %x", a.Blocks, b.Blocks)
	}
	if _, err := Read(strings.NewReader(text+"{"), "x"); err == nil || !strings.Contains(err.Error(), "x:3") {
		t.Errorf("a line that is cut off: %v", err)
	}
}

func TestAt(t *testing.T) {
	w, err := Read(strings.NewReader(text), "x")
	if err != nil {
		t.Fatal(err)
	}
	fast, err := w.At(2, 0, nil)
	if err != nil || fast.Requests[1].Arrival != 1500*time.Millisecond || w.Requests[1].Arrival != 3*time.Second {
		t.Errorf("twice as fast: %v, %v", fast, err)
	}
	spread, err := w.At(1, 10*time.Second, rand.New(rand.NewPCG(1, 1)))
	if err != nil || spread.Requests[0].Arrival > spread.Requests[1].Arrival {
		t.Errorf("out of order: %v, %v", spread, err)
	}
	for _, r := range spread.Requests {
		if r.Arrival < 0 || r.Arrival >= 13*time.Second {
			t.Errorf("arrives at %v", r.Arrival)
		}
	}
	for _, speed := range []float64{0, -1, math.NaN()} {
		if _, err := w.At(speed, 0, nil); !errors.Is(err, ErrShape) {
			t.Errorf("speed %v: %v", speed, err)
		}
	}
}

// TestGenerate: rate, lengths and sharing are those asked for, and the seed's.
func TestGenerate(t *testing.T) {
	for _, c := range []struct {
		s      Statistics
		cached float64 // share of tokens that an endless cache holds
	}{{ArXiv(), 0}, {LEval(), .8}, {Long(16 << 10), .5}} {
		c.s.Requests = 4000
		w, err := Generate(c.s, 1)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Generate(c.s, 1)
		if err != nil || !reflect.DeepEqual(w, again) {
			t.Errorf("%s: the same seed makes another workload", c.s.Name)
		}
		seen := map[uint64]bool{}
		blocks, hits, tokens := 0, 0, 0
		for i := range w.Requests {
			r := &w.Requests[i]
			if len(r.Blocks) != (r.InputTokens+BlockTokens-1)/BlockTokens {
				t.Fatalf("%s: %d blocks for %d tokens", c.s.Name, len(r.Blocks), r.InputTokens)
			}
			tokens += r.InputTokens
			leading := true
			for _, b := range r.Blocks {
				blocks++
				if leading = leading && seen[b]; leading {
					hits++
				}
				seen[b] = true
			}
		}
		within := func(what string, got, want, tolerance float64) {
			if math.Abs(got-want) > tolerance {
				t.Errorf("%s: %s %.3f, want %.3f", c.s.Name, what, got, want)
			}
		}
		n := float64(c.s.Requests)
		within("cached", float64(hits)/float64(blocks), c.cached, .03)
		within("rate", n/w.Requests[len(w.Requests)-1].Arrival.Seconds(), c.s.PerSecond, .06)
		within("input", float64(tokens)/n/float64(c.s.InputTokens), 1, .06)
	}
	for _, s := range []Statistics{{}, {Requests: 1, PerSecond: 1, InputTokens: 1, OutputTokens: 1, Uses: 1, Together: 1, SharedPart: 2}} {
		if _, err := Generate(s, 1); !errors.Is(err, ErrShape) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
