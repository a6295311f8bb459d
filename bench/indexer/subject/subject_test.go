package subject

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// A whole session with our own index: what is stored is found, and by whom it is held.
func TestServeOwn(t *testing.T) {
	o := workload.Options{Engines: 5, BlockTokens: 16, EventBlocks: 8, PromptEvents: 2, Holders: 1, Blocks: 4096, Seed: 1}
	var in bytes.Buffer
	send := json.NewEncoder(&in)
	first, second, third := 0, 1, 2
	for _, c := range []Command{
		{Load: &o, Threads: 2},
		{Prompt: &Prompt{Options: o, Number: 1, Tokens: 1600, Holders: 3}},
		{Prompt: &Prompt{Options: o, Number: 2, Tokens: 1600}},
		{Ask: &first, Times: 3},
		{Ask: &second, Times: 2},
		{Ask: &third, Times: 1},
		{},
	} {
		if err := send.Encode(&c); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := Serve(&in, &out, &Own{BlockTokens: 16}); err != nil {
		t.Fatal(err)
	}
	var got []Answer
	for answers := json.NewDecoder(&out); answers.More(); {
		var a Answer
		if err := answers.Decode(&a); err != nil {
			t.Fatal(err)
		}
		got = append(got, a)
	}
	if len(got) != 7 {
		t.Fatalf("%d answers", len(got))
	}
	if a := got[0]; a.Blocks != 4096 || a.Took <= 0 || a.Heap <= 0 || a.Error != "" {
		t.Errorf("loading: %+v", a)
	}
	if a := got[3]; a.Engines != 3 || a.Held != 100 || len(a.Each) != 3 {
		t.Errorf("asking for what three hold: %+v", a)
	}
	if a := got[4]; a.Engines != 0 || len(a.Each) != 2 {
		t.Errorf("asking for what nobody holds: %+v", a)
	}
	if !strings.Contains(got[5].Error, "no prompt 2") || got[6].Error == "" {
		t.Errorf("mistakes: %+v, %+v", got[5], got[6])
	}
}

func TestServeRefuses(t *testing.T) {
	for _, in := range []string{"{", `{"load":{"Engines":1},"threads":1}`, `{"load":{"Engines":1,"BlockTokens":1,"EventBlocks":1,"PromptEvents":1,"Holders":1}}`} {
		var out bytes.Buffer
		if err := Serve(strings.NewReader(in), &out, &Own{BlockTokens: 1}); err == nil && !strings.Contains(out.String(), `"error"`) {
			t.Errorf("%s is answered by %s", in, &out)
		}
	}
}
