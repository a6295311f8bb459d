package compare

import (
	"context"
	"fmt"
)

// cold returns how a pair of prompts that nobody knows is measured. Its stores end
// before the next request begins.
func (b *bench) cold(cell Cell) measurer {
	made := map[turn]bool{}
	return func(ctx context.Context, t turn, s System) (Seen, error) {
		if err := b.makeRoom(ctx, cell, t, made, 1); err != nil {
			return Seen{}, err
		}
		tokens := randomPrompt(generator(b.Options.Seed, cell.Part, cell.Tokens, t.round, t.prompt, t.attempt), cell.Tokens)
		answer, err := b.ask(ctx, s, Request{Prompt: tokens, MaxTokens: b.Options.OutputTokens})
		if err != nil {
			return Seen{}, err
		}
		return Seen{TTFTMs: []float64{milliseconds(answer.TTFT)}}, b.Quiet.settle(ctx, s)
	}
}

// makeRoom empties all stores before a pair for which they have no room: what is
// compared is storing, not whose eviction begins when. made remembers turns.
func (b *bench) makeRoom(ctx context.Context, cell Cell, t turn, made map[turn]bool, prompts int) error {
	if made[t] {
		return nil
	}
	made[t] = true
	need := int64(prompts*cell.Tokens) * kvBytesPerToken[cell.Model]
	if b.stored+need > b.storeBytes*3/4 {
		for _, s := range b.systems {
			if err := b.Quiet.settle(ctx, s); err != nil {
				return err
			}
			if err := s.Forget(ctx, s.Name() != None && s.Name() != Null); err != nil {
				return fmt.Errorf("emptying the store of %s: %w", s.Name(), err)
			}
		}
		b.stored = 0
	}
	b.stored += need
	return nil
}
