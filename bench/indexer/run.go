package indexer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// Options of a run.
type Options struct {
	// Systems that are compared; the first is this project's.
	Systems []System
	// Load is loaded in each round, Full once before the questions.
	Load, Full workload.Options
	// Threads that a load may use: for each of these there are Rounds.
	Threads []int
	Rounds  int
	// Tokens of the prompts that are asked for, which Holders engines hold, or none does.
	Tokens  []int
	Holders int
	// AskRounds is how often each question is asked by turns, for AskTime or once each.
	AskRounds int
	AskTime   time.Duration
	Seed      uint64
	// Progress is told what goes on.
	Progress func(what string)
}

// askTimes bounds the questions of a turn.
const askTimes = 50

// Run measures. It closes the systems.
func Run(ctx context.Context, o *Options) (_ *Result, err error) {
	defer func() {
		for _, s := range o.Systems {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := errors.Join(o.Load.Validate(), o.Full.Validate()); err != nil {
		return nil, err
	}
	r := &Result{Load: o.Load, Full: o.Full, Holders: o.Holders, Ours: o.Systems[0].Name()}
	random := rand.New(rand.NewPCG(o.Seed, 0))
	for _, threads := range o.Threads {
		for round := range o.Rounds {
			loads := make([]LoadSample, len(o.Systems))
			for _, i := range random.Perm(len(o.Systems)) {
				s := o.Systems[i]
				o.Progress(fmt.Sprintf("load, %d threads, round %d of %d: %s", threads, round+1, o.Rounds, s.Name()))
				loaded, err := s.Load(ctx, o.Load, threads)
				if err = errors.Join(err, s.Close()); err != nil {
					return nil, err
				}
				loads[i] = LoadSample{System: s.Name(), Threads: threads, Round: round, Loaded: loaded}
			}
			r.Loads = append(r.Loads, loads...)
		}
	}
	if o.AskRounds == 0 {
		return r, nil
	}
	return r, o.ask(ctx, r, random)
}

// ask loads every system and asks of them by turns.
func (o *Options) ask(ctx context.Context, r *Result, random *rand.Rand) error {
	threads := o.Threads[len(o.Threads)-1]
	var prompts []Prompt
	for i, tokens := range o.Tokens {
		prompts = append(prompts, Prompt{Number: uint32(2 * i), Tokens: tokens, Holders: o.Holders}, Prompt{Number: uint32(2*i + 1), Tokens: tokens})
	}
	for _, s := range o.Systems {
		o.Progress("full load: " + s.Name())
		loaded, err := s.Load(ctx, o.Full, threads)
		if err != nil {
			return err
		}
		r.Fulls = append(r.Fulls, LoadSample{System: s.Name(), Threads: threads, Loaded: loaded})
		for _, p := range prompts {
			if err := s.Prompt(ctx, p); err != nil {
				return err
			}
		}
	}
	for round := range o.AskRounds {
		o.Progress(fmt.Sprintf("questions, round %d of %d", round+1, o.AskRounds))
		for n, p := range prompts {
			for _, i := range random.Perm(len(o.Systems)) {
				for _, form := range o.Systems[i].Forms() {
					sample, err := o.turn(ctx, o.Systems[i], n, p, form)
					if err != nil {
						return err
					}
					sample.Round = round
					r.Asks = append(r.Asks, sample)
				}
			}
		}
	}
	return nil
}

// turn asks one question of one system for a while, and checks the answers.
func (o *Options) turn(ctx context.Context, s System, n int, p Prompt, form string) (AskSample, error) {
	sample := AskSample{System: s.Name(), Form: form, Tokens: p.Tokens, Hit: p.Holders > 0}
	first, err := s.Ask(ctx, n, form, 1) // caches of the processor are the last system's
	if err != nil {
		return sample, err
	}
	times := int(max(1, min(askTimes, o.AskTime/max(first.Each[0], 1))))
	a, err := s.Ask(ctx, n, form, times)
	if err != nil {
		return sample, err
	}
	if blocks := p.Tokens / o.Full.BlockTokens; p.Holders > 0 && (a.Engines != p.Holders || a.Blocks != blocks) || p.Holders == 0 && a.Engines > 0 {
		return sample, fmt.Errorf("%s says of a prompt of %d blocks, which %d engines hold, that %d hold %d or more", s.Name(), blocks, p.Holders, a.Engines, a.Blocks) //nolint:err113 // what went wrong
	}
	sample.Median, sample.CPU = medianTime(a.Each), a.CPU/time.Duration(times)
	return sample, nil
}
