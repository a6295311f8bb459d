package compare

import (
	"context"
	"fmt"
)

// warm stores the cell's prompts in every system and returns how a pair is measured:
// the same prompt from the store, and then from the engine's own cache.
func (b *bench) warm(ctx context.Context, cell Cell) (measurer, error) {
	rng := generator(b.Options.Seed, cell.Part, cell.Tokens)
	prompts := make([][]int, b.Options.Prompts)
	references := map[string][][]Token{}
	for i := range prompts {
		prompts[i] = randomPrompt(rng, cell.Tokens)
		for _, s := range b.participants(cell.Part) {
			if s.Name() == Null { // has no store, and its outputs mean nothing
				continue
			}
			answer, err := b.ask(ctx, s, Request{Prompt: prompts[i], MaxTokens: b.Options.OutputTokens})
			if err != nil {
				return nil, err
			}
			references[s.Name()] = append(references[s.Name()], answer.Tokens)
		}
		b.Progress("%s warm %d tokens: prompt %d of %d is stored", cell.Model, cell.Tokens, i+1, len(prompts))
	}
	b.stored += int64(len(prompts)*cell.Tokens) * kvBytesPerToken[cell.Model]
	one := func(ctx context.Context, t turn, s System) (Seen, error) {
		if err := b.Quiet.settle(ctx, s); err != nil {
			return Seen{}, err
		}
		if err := s.Forget(ctx, false); err != nil {
			return Seen{}, fmt.Errorf("%s: %w", s.Name(), err)
		}
		request := Request{Prompt: prompts[t.prompt], MaxTokens: b.Options.OutputTokens, Claim: s.Name() == Null}
		fromStore, err := b.ask(ctx, s, request)
		if err != nil {
			return Seen{}, err
		}
		fromEngine, err := b.ask(ctx, s, request)
		if err != nil {
			return Seen{}, err
		}
		seen := Seen{StoreWarmMs: milliseconds(fromStore.TTFT), EngineWarmMs: milliseconds(fromEngine.TTFT), CachedTokens: fromStore.CachedTokens}
		if s.Name() != Null {
			seen.Wrong = wrong(references[s.Name()][t.prompt], fromStore.Tokens)
		}
		return seen, nil
	}
	// Once without recording: a first load pays for memory that was never touched.
	for prompt := range prompts {
		for _, s := range b.participants(cell.Part) {
			if _, err := one(ctx, turn{prompt: prompt}, s); err != nil {
				return nil, err
			}
		}
	}
	return one, nil
}
