package fleet

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func newFleet(t testing.TB, engines ...Engine) *Fleet {
	t.Helper()
	f, err := New(engines, Options{}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range f.engines {
		e.health.up = true
	}
	return f
}

func prompt(tokens int, work time.Duration) Load {
	return Load{Tokens: tokens, Prefill: true, Decode: true, Work: work, First: work}
}

func begin(f *Fleet, load Load) *Flight {
	_, flight := f.Begin(context.Background(), Target{}, load)
	return flight
}

// TestOwnRequestsCountAtOnce: the second of two requests that come together finds the
// first in the queue.
func TestOwnRequestsCountAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Engine{Name: "a", URL: "http://a"})
		a := begin(f, prompt(1000, 4*time.Second))
		c := f.Candidates("", nil)[0]
		if c.Prefill.Queue != 4*time.Second || c.Prefill.Outstanding != 1 || c.Decode.Sequences != 1 || c.Decode.ContextTokens != 1000 {
			t.Fatalf("%+v: want the first request in it", c)
		}
		b := begin(f, prompt(500, 2*time.Second))
		time.Sleep(3 * time.Second)
		if q := f.Candidates("", nil)[0].Prefill.Queue; q != 3*time.Second {
			t.Errorf("a queue of %v after 3 of 6 s, want 3 s", q)
		}
		time.Sleep(time.Second)
		a.First()
		if q := f.Candidates("", nil)[0].Prefill.Queue; q != 2*time.Second {
			t.Errorf("a queue of %v when the first is done in time, want 2 s", q)
		}
		a.Tokens(windowTokens)
		time.Sleep(30 * time.Second)
		if q := f.Candidates("", nil)[0].Prefill.Queue; q != 2*time.Second/overdueShare {
			t.Errorf("a queue of %v behind a prompt that is overdue, want some", q)
		}
		b.End() // without a first token
		a.End()
		a.End()
		if c := f.Candidates("", nil)[0]; c.Prefill.Queue != 0 || c.Prefill.Outstanding != 0 || c.Decode.Sequences != 0 || c.Decode.ContextTokens != 0 {
			t.Errorf("%+v is left of requests that have ended", c)
		}
	})
}

// TestPollsOnlyCorrect: what an engine says that it has is ours, as far as it goes.
func TestPollsOnlyCorrect(t *testing.T) {
	f := newFleet(t, Engine{Name: "a", URL: "http://a"})
	a := begin(f, prompt(1000, time.Second))
	r := &f.engines[0].ranks[0]
	for _, c := range []struct {
		waiting, running  float64
		ownPrompts, own   int
		prompts, sequence int
	}{
		{1, 0, 0, 0, 0, 0}, // it came while the poll was under way
		{0, 1, 1, 1, 0, 0},
		{3, 2, 1, 1, 2, 2},
		{0, 0, 5, 5, 0, 0}, // they have ended since
	} {
		r.corrected(&sample{Waiting: c.waiting, Running: c.running}, c.ownPrompts, c.own)
		if r.otherPrompts != c.prompts || r.otherSequences != c.sequence {
			t.Errorf("%+v: %d prompts and %d sequences of others", c, r.otherPrompts, r.otherSequences)
		}
	}
	a.End()
}

// TestBusyPeriodsTeach: prompts that an engine takes together are observed as what they
// cost together, and such a period with something unknown in it is not.
func TestBusyPeriodsTeach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Engine{Name: "a", URL: "http://a"}, Engine{Name: "b", URL: "http://b"})
		const perToken = 300 * time.Microsecond
		for i := range 400 {
			tokens := 500 + 37*(i%40)
			a, b := begin(f, prompt(tokens, time.Second)), begin(f, prompt(2*tokens, time.Second))
			time.Sleep(3 * time.Duration(tokens) * perToken)
			a.First() // in one batch
			b.First()
			a.End()
			b.End()
		}
		learned := f.Costs().Learned()
		if learned.Prefills != 400 {
			t.Errorf("%d periods were observed of 400", learned.Prefills)
		}
		if got := f.Costs().Prefill(10_000, 0); math.Abs(got.Seconds()-3) > 0.3 {
			t.Errorf("10,000 tokens take %v, want 3 s", got)
		}
		a, b := begin(f, prompt(100, time.Second)), begin(f, prompt(100, time.Second))
		a.End() // the client has gone
		time.Sleep(time.Hour)
		b.First()
		b.End()
		if n := f.Costs().Learned().Prefills; n != 400 {
			t.Errorf("a period in which a prompt was given up was observed")
		}
	})
}

// TestBlindPrompts: one whose first token nobody reports counts until it is expected, and
// teaches nothing.
func TestBlindPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Engine{Name: "a", URL: "http://a"})
		load := prompt(1000, 2*time.Second)
		load.Blind = true
		flight, seen := begin(f, load), begin(f, prompt(10, time.Second))
		r := &f.engines[0].ranks[0]
		time.Sleep(time.Second)
		r.settle(time.Now())
		if r.prompts != 2 {
			t.Errorf("%d prompts after a second, want both", r.prompts)
		}
		time.Sleep(time.Second)
		r.settle(time.Now())
		if r.prompts != 1 || r.sequences != 2 {
			t.Errorf("%d prompts and %d sequences after two", r.prompts, r.sequences)
		}
		time.Sleep(time.Minute)
		flight.First()
		seen.First()
		flight.End()
		seen.End()
		if learned := f.Costs().Learned(); learned.Prefills != 0 {
			t.Errorf("%d prefills were learned from", learned.Prefills)
		}
	})
}

// TestStepsTeach: the pace of streams is observed with the batch that they are in.
func TestStepsTeach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Engine{Name: "a", URL: "http://a"})
		for batch := 1; batch <= 32; batch++ {
			var all []*Flight
			for range batch {
				flight := begin(f, prompt(100, time.Millisecond))
				flight.First()
				all = append(all, flight)
			}
			for range 4 * windowTokens {
				time.Sleep(20*time.Millisecond + time.Duration(batch)*time.Millisecond)
				for _, flight := range all {
					flight.Tokens(1)
				}
			}
			for _, flight := range all {
				flight.End()
			}
		}
		if got := f.Costs().Iteration(16, 16*130); math.Abs(got.Seconds()-36e-3) > 4e-3 {
			t.Errorf("a step of 16 sequences takes %v, want 36 ms", got)
		}
	})
}

// TestOthersTeach: where requests go another way, the engine's own figures are learned
// from, and what restarted is not.
func TestOthersTeach(t *testing.T) {
	f := newFleet(t, Engine{Name: "a", URL: "http://a"})
	r := &f.engines[0].ranks[0]
	var s sample
	for range 100 {
		s.Prefills, s.ComputedTokens, s.PrefillSeconds = s.Prefills+2, s.ComputedTokens+4000, s.PrefillSeconds+8
		s.Steps, s.StepSeconds = s.Steps+100, s.StepSeconds+5
		r.learn(&s, f.costs)
		r.corrected(&s, 0, 0)
	}
	if got := f.costs.Prefill(2000, 0); math.Abs(got.Seconds()-4) > 0.5 {
		t.Errorf("2000 tokens take %v, want 4 s", got)
	}
	if got := f.costs.Iteration(0, 0); math.Abs(got.Seconds()-50e-3) > 10e-3 {
		t.Errorf("a step takes %v, want 50 ms", got)
	}
	before := f.costs.Learned()
	r.learn(&sample{Prefills: 1, PrefillSeconds: 1, Steps: 1, StepSeconds: 1}, f.costs)
	if after := f.costs.Learned(); after != before {
		t.Errorf("%+v was learned from counters that went backwards", after)
	}
}

// TestForecast: what will decode at a moment, and what will have got there.
func TestForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Engine{Name: "a", URL: "http://a"})
		old, young := begin(f, prompt(1, time.Second)), begin(f, prompt(1, time.Second))
		old.First()
		time.Sleep(40 * time.Second)
		young.First()
		soon, late := begin(f, prompt(1, 5*time.Second)), begin(f, prompt(1, 50*time.Second))
		f.engines[0].ranks[0].otherSequences = 2
		c := f.Forecast()
		if n := c.Staying(30*time.Second, time.Minute); n != 1+2 {
			t.Errorf("%d stay, want the young one and two of others", n)
		}
		if n := c.Arriving(10 * time.Second); n != 1 {
			t.Errorf("%d arrive, want the one that is soon done", n)
		}
		for _, flight := range []*Flight{old, young, soon, late} {
			flight.End()
		}
	})
}

// TestNothingIsLeft: whatever becomes of requests, when all have ended nothing is
// counted.
func TestNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(&testing.T{}, Engine{Name: "a", URL: "http://a", Ranks: 2}, Engine{Name: "b", URL: "http://b"})
		var flights []*Flight
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				load := Load{
					Tokens: rapid.IntRange(0, 1<<20).Draw(t, "tokens"), Prefill: rapid.Bool().Draw(t, "prefill"), Decode: rapid.Bool().Draw(t, "decode"),
					Work: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "work")),
				}
				to := rapid.SampledFrom([]Target{{0, 0}, {0, 1}, {1, 0}}).Draw(t, "to")
				_, flight := f.Begin(context.Background(), to, load)
				flights = append(flights, flight)
			case 1:
				if len(flights) > 0 {
					pick(t, flights).First()
				}
			case 2:
				if len(flights) > 0 {
					flight := pick(t, flights)
					if flight.TTFT() > 0 {
						flight.Tokens(rapid.IntRange(0, 40).Draw(t, "tokens"))
					}
				}
			case 3:
				if len(flights) > 0 {
					pick(t, flights).End()
				}
			}
			for _, v := range f.Views() {
				for _, r := range v.Ranks {
					if r.OurPrompts < 0 || r.OurPrompts > r.OurRequests || r.ContextTokens < 0 || r.QueueSeconds < 0 {
						t.Fatalf("%+v", r)
					}
				}
			}
		}
		for _, flight := range flights {
			flight.End()
		}
		for _, e := range f.engines {
			for i := range e.ranks {
				if r := &e.ranks[i]; len(r.flights) != 0 || r.prompts != 0 || r.work != 0 || r.sequences != 0 || r.context != 0 {
					t.Fatalf("%+v is left", r)
				}
			}
		}
	})
}

func pick(t *rapid.T, flights []*Flight) *Flight {
	return flights[rapid.IntRange(0, len(flights)-1).Draw(t, "flight")]
}
