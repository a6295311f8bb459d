package indexer

import (
	"bytes"
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// double is a system that takes as long as it is told to, and answers right or not.
type double struct {
	name    string
	took    time.Duration
	wrong   bool
	loaded  workload.Options
	prompts []Prompt
	loads   int
	closed  bool
}

func (d *double) Name() string    { return d.name }
func (d *double) Forms() []string { return []string{"call"} }

func (d *double) Load(_ context.Context, load workload.Options, _ int) (Loaded, error) {
	d.loaded, d.prompts, d.closed = load, nil, false
	d.loads++
	return Loaded{Blocks: load.Held(), Took: d.took, CPU: d.took, Bytes: int64(d.took)}, nil
}

func (d *double) Prompt(_ context.Context, p Prompt) error {
	d.prompts = append(d.prompts, p)
	return nil
}

func (d *double) Ask(_ context.Context, prompt int, _ string, times int) (Asked, error) {
	a := Asked{Each: make([]time.Duration, times), CPU: time.Duration(times) * d.took}
	for i := range a.Each {
		a.Each[i] = d.took
	}
	p := d.prompts[prompt]
	if a.Engines = p.Holders; p.Holders > 0 {
		a.Blocks = p.Tokens / d.loaded.BlockTokens
	}
	if d.wrong {
		a.Engines++
	}
	return a, nil
}

func (d *double) Close() error {
	d.closed = true
	return nil
}

func options(systems ...System) *Options {
	load := workload.Options{Engines: 4, BlockTokens: 16, EventBlocks: 8, PromptEvents: 2, Holders: 1, Blocks: 1024, Seed: 1}
	return &Options{
		Systems: systems, Load: load, Full: load, Threads: []int{1, 2}, Rounds: 3, Tokens: []int{160, 1600}, Holders: 2,
		AskRounds: 4, AskTime: time.Millisecond, Seed: 1, Progress: func(string) {},
	}
}

// Ours is four times as fast: all figures say so, whichever was measured first.
func TestRun(t *testing.T) {
	ours, peer := &double{name: "ours", took: time.Microsecond}, &double{name: "peer", took: 4 * time.Microsecond}
	r, err := Run(t.Context(), options(ours, peer))
	if err != nil {
		t.Fatal(err)
	}
	if !ours.closed || !peer.closed || ours.loads != 7 || peer.loads != 7 {
		t.Errorf("%+v, %+v", ours, peer)
	}
	rows := r.Rows()
	if len(rows) != 2*(2*2+1+2*2*2) {
		t.Errorf("%d rows", len(rows))
	}
	for i, row := range rows {
		ratio := 0.25
		if strings.Contains(row.Unit, "blocks/s") {
			ratio = 4
		}
		switch {
		case i%2 == 0 && (row.System != "ours" || row.Ours.Value != 0):
			t.Errorf("%+v is not ours", row)
		case i%2 == 1 && (row.System != "peer" || row.Ours.Value != ratio || row.Ours.Low != ratio):
			t.Errorf("%+v, not %v times", row, ratio)
		}
	}
	var text, raw bytes.Buffer
	if err := r.Print(&text); err != nil || !strings.Contains(text.String(), "query, 1600 tokens, miss") {
		t.Errorf("%v: %s", err, &text)
	}
	if err := r.JSON(&raw); err != nil || !strings.Contains(raw.String(), `"took_ns":1000`) {
		t.Errorf("%v: %s", err, &raw)
	}
}

func TestRunChecksAnswers(t *testing.T) {
	wrong := &double{name: "peer", took: 1, wrong: true}
	if _, err := Run(t.Context(), options(&double{name: "ours", took: 1}, wrong)); err == nil || !strings.Contains(err.Error(), "peer says") {
		t.Errorf("a wrong answer is taken: %v", err)
	}
	if !wrong.closed {
		t.Error("a system is left running")
	}
}

// What services answer is read, zero rows are nobody's.
func TestHeld(t *testing.T) {
	for answer, d := range map[string]Dialect{
		`{"scores":{},"instances":{"1":{"longest_matched":16,"dp":{"0":16}},"2":{"longest_matched":0}}}`:    Dynamo{},
		`{"default":{"1":{"longest_matched":16,"DP":{"0":16},"GPU":16,"CPU":0},"2":{"longest_matched":0}}}`: Conductor{},
	} {
		held, err := d.Held([]byte(answer))
		if err != nil || len(held) != 1 || held["1"] != 16 {
			t.Errorf("%s: %v, %v", d.Name(), held, err)
		}
		if _, err := d.Held([]byte("[]")); err == nil {
			t.Errorf("%s takes a list", d.Name())
		}
		if _, _, body := d.Question(formJSON, []uint32{1, 20}, 16); !bytes.Contains(body, []byte("[1,20]")) {
			t.Errorf("%s asks %s", d.Name(), body)
		}
	}
}

// A process's own time, seen from outside, is what it sees itself.
func TestProcessTime(t *testing.T) {
	before, err := processTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var usage syscall.Rusage
	for {
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			t.Fatal(err)
		}
		if now, err := processTime(os.Getpid()); err != nil || now < before {
			t.Fatalf("%s after %s, %v", now, before, err)
		} else if now > before {
			break
		}
	}
	seen, err := processTime(os.Getpid())
	if own := time.Duration(usage.Utime.Nano() + usage.Stime.Nano()); err != nil || seen < own-time.Second {
		t.Errorf("%s from outside, %s from inside, %v", seen, own, err)
	}
	if bytes, err := residentBytes(os.Getpid()); err != nil || bytes < 1<<20 {
		t.Errorf("%d bytes, %v", bytes, err)
	}
}
