package compare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/pause"
)

const (
	// decodedTokens are generated beside each arriving prompt: the same work for
	// every system, however fast it is.
	decodedTokens = 48
	// decodePrompt is the length of the prompt that they follow.
	decodePrompt = 256
	// calibrations are prompts that tell how long one takes alone.
	calibrations = 3
)

// overlap measures how long a prompt takes on the engine alone and returns how a
// round is measured: prompts that nobody knows arrive by a schedule, whether or not
// earlier ones are done or stored, while one request decodes.
func (b *bench) overlap(ctx context.Context, cell Cell) (measurer, error) {
	gap, err := b.meanGap(ctx, cell)
	if err != nil {
		return nil, err
	}
	b.Progress("%s overlap %d tokens: a prompt every %s on average", cell.Model, cell.Tokens, gap.Round(time.Millisecond))
	made := map[turn]bool{}
	return func(ctx context.Context, t turn, s System) (Seen, error) {
		if err := b.makeRoom(ctx, cell, t, made, b.Options.Arrivals); err != nil {
			return Seen{}, err
		}
		rng := generator(b.Options.Seed, cell.Part, cell.Tokens, t.round, t.attempt)
		offsets := arrivals(rng, b.Options.Arrivals, gap)
		decode := Request{Prompt: randomPrompt(rng, decodePrompt), MaxTokens: decodedTokens * b.Options.Arrivals}
		prompts := make([]Request, len(offsets))
		for i := range prompts {
			prompts[i] = Request{Prompt: randomPrompt(rng, cell.Tokens), MaxTokens: b.Options.OutputTokens}
		}
		if err := b.Quiet.settle(ctx, s); err != nil {
			return Seen{}, err
		}
		before, err := s.CPUTime()
		if err != nil {
			return Seen{}, err
		}
		seen, err := overlapped(ctx, s, decode, prompts, offsets)
		if err != nil {
			return Seen{}, fmt.Errorf("%s: %w", s.Name(), err)
		}
		if err := b.Quiet.settle(ctx, s); err != nil {
			return Seen{}, err
		}
		after, err := s.CPUTime()
		seen.CPUSeconds = (after - before).Seconds()
		return seen, err
	}, nil
}

// meanGap makes one prompt take the wanted share of the time between two.
func (b *bench) meanGap(ctx context.Context, cell Cell) (time.Duration, error) {
	var alone []float64
	for _, s := range b.systems {
		if s.Name() != None {
			continue
		}
		rng := generator(b.Options.Seed, "calibration", cell.Tokens)
		for range calibrations {
			answer, err := b.ask(ctx, s, Request{Prompt: randomPrompt(rng, cell.Tokens), MaxTokens: 1})
			if err != nil {
				return 0, err
			}
			alone = append(alone, float64(answer.TTFT))
		}
	}
	return time.Duration(Median(alone) / b.Options.Load), nil
}

// overlapped runs a round's requests and waits for all.
func overlapped(ctx context.Context, s System, decode Request, prompts []Request, offsets []time.Duration) (Seen, error) {
	seen := Seen{TTFTMs: make([]float64, len(prompts))}
	faults := make([]error, len(prompts)+1)
	var wait sync.WaitGroup
	wait.Go(func() {
		answer, err := s.Complete(ctx, decode)
		faults[len(prompts)] = err
		for _, gap := range answer.Gaps {
			seen.GapMs = append(seen.GapMs, milliseconds(gap))
		}
	})
	begin := time.Now()
	for i, prompt := range prompts {
		wait.Go(func() {
			if err := pause.For(ctx, time.Until(begin.Add(offsets[i]))); err != nil {
				faults[i] = err
				return
			}
			answer, err := s.Complete(ctx, prompt)
			faults[i], seen.TTFTMs[i] = err, milliseconds(answer.TTFT)
		})
	}
	wait.Wait()
	return seen, errors.Join(faults...)
}
