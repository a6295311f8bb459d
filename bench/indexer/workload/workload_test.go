package workload

import (
	"bytes"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

func small() Options {
	return Options{Engines: 3, BlockTokens: 4, EventBlocks: 2, PromptEvents: 3, Holders: 2, Blocks: 50, Seed: 1}
}

// What is sent are whole prompts, each as a chain, to its holders in the same words.
func TestAll(t *testing.T) {
	o := small()
	d := kvevents.NewDecoder()
	blocks, sent := 0, map[int]int{}
	last := map[int]kvevents.Hash{}
	for b := range o.All() {
		batch, refused, err := d.Decode(b.Payload)
		if err != nil || refused != 0 || len(batch.Events) != 1 {
			t.Fatalf("%d refused, %v", refused, err)
		}
		e := batch.Events[0].(*kvevents.BlockStored)
		first := sent[b.Engine]%o.PromptEvents == 0
		if len(e.Hashes) != 2 || len(e.TokenIDs) != 8 || e.BlockSize != 4 || e.SpecKind != "full_attention" || !e.HasExtraKeys || first != (e.Parent == nil) {
			t.Fatalf("event %d of engine %d: %+v", sent[b.Engine], b.Engine, e)
		}
		if !first && *e.Parent != last[b.Engine] {
			t.Errorf("event %d of engine %d follows %d, not %d", sent[b.Engine], b.Engine, *e.Parent, last[b.Engine])
		}
		last[b.Engine] = e.Hashes[1]
		sent[b.Engine]++
		blocks += len(e.Hashes)
	}
	if blocks != 48 || o.Held() != 48 || len(sent) != 3 {
		t.Errorf("%d blocks, %d said, of %v", blocks, o.Held(), sent)
	}
}

func TestSameOptionsSameBytes(t *testing.T) {
	o := small()
	one, two := slices.Collect(o.All()), slices.Collect(o.All())
	o.Seed = 2
	other := slices.Collect(o.All())
	for i := range one {
		if one[i].Engine != two[i].Engine || !bytes.Equal(one[i].Payload, two[i].Payload) || bytes.Equal(one[i].Payload, other[i].Payload) {
			t.Fatalf("batch %d differs, or does not with another seed", i)
		}
	}
}

func TestPrompt(t *testing.T) {
	o := small()
	prompt, batches := o.Prompt(1, 21, 2)
	again, none := o.Prompt(1, 21, 0)
	another, _ := o.Prompt(2, 21, 0)
	// Five whole blocks: events of two, two and one, to two engines each.
	if len(prompt) != 20 || len(batches) != 6 || len(none) != 0 || !slices.Equal(prompt, again) || slices.Equal(prompt, another) {
		t.Errorf("%d tokens in %d and %d batches", len(prompt), len(batches), len(none))
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Options){
		"no engine": func(o *Options) { o.Engines = 0 }, "no holder": func(o *Options) { o.Holders = 0 },
		"more holders than engines": func(o *Options) { o.Holders = o.Engines + 1 }, "no token": func(o *Options) { o.BlockTokens = 0 },
	} {
		o := Default()
		if spoil(&o); o.Validate() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
