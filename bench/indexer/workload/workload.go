package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Model is the name of the model whose blocks they are.
const Model = "model"

// Options of a workload.
type Options struct {
	// Engines that send, and BlockTokens a block of theirs has.
	Engines, BlockTokens int
	// EventBlocks is how many blocks an event has, PromptEvents how many events a prompt.
	EventBlocks, PromptEvents int
	// Holders is how many engines hold a prompt.
	Holders int
	// Blocks in all, each counted once for each engine that holds it. What does not make
	// a whole prompt is left out.
	Blocks int
	Seed   uint64
}

// Default is what the figures in the documentation are of.
func Default() Options {
	return Options{Engines: 64, BlockTokens: 16, EventBlocks: 128, PromptEvents: 4, Holders: 1, Blocks: 1 << 20, Seed: 1}
}

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	if o.Engines < 1 || o.BlockTokens < 1 || o.EventBlocks < 1 || o.PromptEvents < 1 || o.Blocks < 0 {
		return errors.New("engines, block tokens, blocks an event and events a prompt must be positive")
	}
	if o.Holders < 1 || o.Holders > o.Engines {
		return fmt.Errorf("%d holders of a prompt among %d engines", o.Holders, o.Engines)
	}
	return nil
}

// Batch is a message of an engine.
type Batch struct {
	Engine  int
	Payload []byte
}

// prompts is how many there are.
func (o Options) prompts() int { return o.Blocks / (o.Holders * o.PromptEvents * o.EventBlocks) }

// Held is how many blocks the batches of All have, a block counted for each holder.
func (o Options) Held() int { return o.prompts() * o.Holders * o.PromptEvents * o.EventBlocks }

// All are the batches, in the order in which they are to be sent. They are the caller's.
func (o Options) All() iter.Seq[Batch] {
	return func(yield func(Batch) bool) {
		e := kvevents.NewEncoder()
		for k := range o.prompts() {
			random := rand.New(rand.NewPCG(o.Seed, uint64(k)))
			var parent *kvevents.Hash
			for range o.PromptEvents {
				event := o.stored(random, parent, o.EventBlocks)
				parent = &event.Hashes[len(event.Hashes)-1]
				for i := range o.Holders {
					if !yield(Batch{Engine: (k*o.Holders + i) % o.Engines, Payload: encode(e, event)}) {
						return
					}
				}
			}
		}
	}
}

// asked begins the random numbers of prompts that are asked for, none of which is a
// prompt of All.
const asked = 1 << 63

// Prompt is the n-th prompt to be asked for, and the batches that make the first holders
// engines hold all of it; nobody holds it without them.
func (o Options) Prompt(n uint32, tokens, holders int) (prompt []uint32, batches []Batch) {
	random := rand.New(rand.NewPCG(o.Seed, asked|uint64(n)<<32|uint64(tokens)))
	e := kvevents.NewEncoder()
	var parent *kvevents.Hash
	for left := tokens / o.BlockTokens; left > 0; left -= o.EventBlocks {
		event := o.stored(random, parent, min(left, o.EventBlocks))
		parent = &event.Hashes[len(event.Hashes)-1]
		prompt = append(prompt, event.TokenIDs...)
		for engine := range holders {
			batches = append(batches, Batch{Engine: engine, Payload: encode(e, event)})
		}
	}
	return prompt, batches
}

// vocabulary is how many tokens there are: of a usual size.
const vocabulary = 150_000

// stored is an event as vLLM 0.32 sends it for a model with one group of full attention
// and a request without salt, adapter or images.
func (o Options) stored(random *rand.Rand, parent *kvevents.Hash, blocks int) *kvevents.BlockStored {
	group := 0
	e := &kvevents.BlockStored{
		Parent: parent, BlockSize: o.BlockTokens, Medium: kvevents.MediumGPU, Group: &group, SpecKind: "full_attention",
		HasExtraKeys: true, ExtraKeys: nothing(blocks),
	}
	for range blocks {
		e.Hashes = append(e.Hashes, kvevents.Hash(random.Uint64()))
	}
	for range blocks * o.BlockTokens {
		e.TokenIDs = append(e.TokenIDs, random.Uint32N(vocabulary))
	}
	return e
}

// nothing is a MessagePack list of so many nils: no extra keys, block by block.
func nothing(blocks int) []byte {
	const array16, null = 0xdc, 0xc0
	list := binary.BigEndian.AppendUint16([]byte{array16}, uint16(blocks))
	if blocks < 16 {
		list = []byte{0x90 | byte(blocks)}
	}
	for range blocks {
		list = append(list, null)
	}
	return list
}

// encode writes a batch with one event. The events made here can be written.
func encode(e *kvevents.Encoder, event *kvevents.BlockStored) []byte {
	rank := 0
	payload, err := e.Encode(&kvevents.Batch{Time: 1, Events: []kvevents.Event{event}, Rank: &rank})
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return payload
}

// LittleEndian returns tokens in 32 bits each.
func LittleEndian(tokens []uint32) []byte {
	out := make([]byte, 0, 4*len(tokens))
	for _, token := range tokens {
		out = binary.LittleEndian.AppendUint32(out, token)
	}
	return out
}
