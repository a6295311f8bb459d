package compare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Run is a comparison under way.
type Run struct {
	Options  Options
	Launcher Launcher
	Quiet    Quiet
	// Progress is told what happens, a line each. It is called from one goroutine at a time.
	Progress func(format string, args ...any)
	// Busy is the CPU time that the whole machine has used but this process; nil measures
	// beside other work without noticing.
	Busy func() (time.Duration, error)
	// Save is called after every pair with all pairs so far. Nothing is measured meanwhile,
	// but it should not take long.
	Save func(pairs []Pair) error
	// Pairs are those of an earlier run with the same options; Run adds to them.
	Pairs []Pair
}

// attempts are made at a pair beside which other processes worked; the last one is
// taken as it is.
const attempts = 4

// turn is a pair to be measured. A second attempt must not know the first's prompt.
type turn struct{ round, prompt, attempt int }

// measurer measures one system's part of a pair.
type measurer func(ctx context.Context, t turn, s System) (Seen, error)

// startsAtOnce is how many engines start together: two cores start two in little
// more than the time of one.
const startsAtOnce = 2

// Do measures everything. Pairs holds what was measured, after an error too.
func (r *Run) Do(ctx context.Context) error {
	for _, model := range r.Options.Models {
		if err := r.model(ctx, model); err != nil {
			return fmt.Errorf("%s: %w", model, err)
		}
	}
	return nil
}

// cells of a model that are not complete, in order: prompts that are to be found
// again come before those that push them out.
func (r *Run) cells(model string) []Cell {
	var cells []Cell
	for _, part := range []string{PartWarm, PartCold, PartOverlap} {
		if !slices.Contains(r.Options.Parts, part) {
			continue
		}
		for _, tokens := range r.Options.Tokens {
			cell := Cell{part, model, tokens}
			if rounds, prompts := r.size(part); r.count(cell) < rounds*prompts {
				cells = append(cells, cell)
			}
		}
	}
	return cells
}

// size of a part: its pairs are rounds x prompts.
func (r *Run) size(part string) (rounds, prompts int) {
	if part == PartOverlap {
		return r.Options.OverlapRounds, 1
	}
	return r.Options.Rounds, r.Options.Prompts
}

func (r *Run) count(cell Cell) int {
	n := 0
	for _, pair := range r.Pairs {
		if pair.Cell == cell {
			n++
		}
	}
	return n
}

func (r *Run) has(cell Cell, round, prompt int) bool {
	return slices.ContainsFunc(r.Pairs, func(p Pair) bool { return p.Cell == cell && p.Round == round && p.Prompt == prompt })
}

func (r *Run) model(ctx context.Context, model string) (err error) {
	cells := r.cells(model)
	if len(cells) == 0 {
		return nil
	}
	r.Progress("%s: starting %d engines", model, len(r.Options.With))
	shared, err := r.Launcher.Prepare(ctx, model, r.Options.storeBytes(model))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.Close()) }()
	systems, err := r.launch(ctx, model)
	defer func() { err = errors.Join(err, closeAll(systems)) }()
	if err != nil {
		return err
	}
	b := &bench{Run: r, shared: shared, systems: systems, storeBytes: r.Options.storeBytes(model)}
	if err := b.warmUp(ctx); err != nil {
		return err
	}
	b.holdPrograms(model)
	for _, cell := range cells {
		if err := b.measure(ctx, cell); err != nil {
			return fmt.Errorf("%s, %d tokens: %w", cell.Part, cell.Tokens, err)
		}
	}
	return nil
}

// launch starts all systems. What it returns has to be closed, with an error too.
func (r *Run) launch(ctx context.Context, model string) ([]System, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	systems := make([]System, len(r.Options.With))
	faults := make([]error, len(systems))
	permits := make(chan struct{}, startsAtOnce)
	var wait sync.WaitGroup
	for i, name := range r.Options.With {
		wait.Go(func() {
			permits <- struct{}{}
			defer func() { <-permits }()
			if ctx.Err() != nil {
				return
			}
			if systems[i], faults[i] = r.Launcher.Launch(ctx, name, model, r.Options.storeBytes(model), r.Options.KVGiB); faults[i] != nil {
				cancel(fmt.Errorf("%s did not start", name))
			}
		})
	}
	wait.Wait()
	return slices.DeleteFunc(systems, func(s System) bool { return s == nil }), errors.Join(append(faults, context.Cause(ctx))...)
}

func closeAll(systems []System) error {
	faults := make([]error, len(systems))
	var wait sync.WaitGroup
	for i, s := range systems {
		wait.Go(func() { faults[i] = s.Close() })
	}
	wait.Wait()
	return errors.Join(faults...)
}

// bench is a run with the systems of one model.
type bench struct {
	*Run
	shared     Shared
	systems    []System
	storeBytes int64
	// stored are bytes that were put into every store since it was emptied last.
	stored int64
}

// warmUp pays for what engines do once.
func (b *bench) warmUp(ctx context.Context) error {
	rng := generator(b.Options.Seed, "warm-up")
	for range 2 {
		prompt := randomPrompt(rng, 300)
		for _, s := range b.systems {
			if _, err := b.ask(ctx, s, Request{Prompt: prompt, MaxTokens: b.Options.OutputTokens}); err != nil {
				return err
			}
		}
	}
	return nil
}

// holdPrograms keeps in memory what all systems run, so that none pays for pages
// that the machine took back while the others had their turns.
func (b *bench) holdPrograms(model string) {
	for _, s := range b.systems {
		n, err := s.HoldPrograms()
		if err != nil {
			b.Progress("%s: measured with programs that the machine may drop from memory: %v", model, err)
			return
		}
		b.Progress("%s: %d MiB of %s's programs are held in memory", model, n>>20, s.Name())
	}
}

// ask runs one request on a system that is quiet.
func (b *bench) ask(ctx context.Context, s System, request Request) (Answer, error) {
	if err := b.Quiet.settle(ctx, s); err != nil {
		return Answer{}, err
	}
	answer, err := s.Complete(ctx, request)
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", s.Name(), err)
	}
	return answer, nil
}

// measure completes a cell.
func (b *bench) measure(ctx context.Context, cell Cell) error {
	var one measurer
	var err error
	switch cell.Part {
	case PartWarm:
		one, err = b.warm(ctx, cell)
	case PartCold:
		one = b.cold(cell)
	default:
		one, err = b.overlap(ctx, cell)
	}
	if err != nil {
		return err
	}
	rounds, prompts := b.size(cell.Part)
	done, begin, before := b.count(cell), time.Now(), b.count(cell)
	for round := range rounds {
		rng := generator(b.Options.Seed, "order/"+cell.Part, cell.Tokens, round)
		for _, prompt := range rng.Perm(prompts) {
			order := shuffled(rng, b.participants(cell.Part))
			if b.has(cell, round, prompt) {
				continue
			}
			pair, err := b.pair(ctx, Pair{Cell: cell, Round: round, Prompt: prompt}, order, one)
			if err != nil {
				return err
			}
			b.Pairs = append(b.Pairs, pair)
			if err := b.Save(b.Pairs); err != nil {
				return err
			}
			done++
		}
		left := time.Duration(float64(time.Since(begin)) / float64(max(done-before, 1)) * float64(rounds*prompts-done))
		b.Progress("%s %s %d tokens: %d of %d pairs, about %s left", cell.Model, cell.Part, cell.Tokens, done, rounds*prompts, left.Round(time.Second))
	}
	return nil
}

// pair measures every system in order, again when something else disturbed it.
func (b *bench) pair(ctx context.Context, pair Pair, order []System, one measurer) (Pair, error) {
	for attempt := range attempts {
		begin := time.Now()
		before, err := b.others()
		if err != nil {
			return pair, err
		}
		pair.Seen = map[string]Seen{}
		for _, s := range order {
			if pair.Seen[s.Name()], err = one(ctx, turn{pair.Round, pair.Prompt, attempt}, s); err != nil {
				return pair, err
			}
		}
		after, err := b.others()
		if err != nil {
			return pair, err
		}
		pair.OthersShare = max(0, float64(after-before)/float64(time.Since(begin)))
		if pair.OthersShare <= b.Options.MaxOthers {
			break
		}
	}
	return pair, nil
}

// others is the CPU time that neither this process nor the systems have used.
func (b *bench) others() (time.Duration, error) {
	if b.Busy == nil {
		return 0, nil
	}
	busy, err := b.Busy()
	if err != nil {
		return 0, err
	}
	for _, s := range b.systems {
		used, err := s.CPUTime()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.Name(), err)
		}
		busy -= used
	}
	used, err := b.shared.CPUTime()
	return busy - used, err
}

// participants of a part: the engine alone has no store-warm.
func (b *bench) participants(part string) []System {
	return slices.DeleteFunc(slices.Clone(b.systems), func(s System) bool { return part == PartWarm && s.Name() == None })
}

func shuffled(rng *rand.Rand, systems []System) []System {
	rng.Shuffle(len(systems), func(i, j int) { systems[i], systems[j] = systems[j], systems[i] })
	return systems
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
