package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/prompt"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
	"github.com/mooncake-sidecar/sidecar/bench/replay/standin"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// options for a server with blocks of 16 tokens; a trace's block has 32.
func options() *Options {
	return &Options{
		Scale: prompt.Scale{BlockTokens: 32}, EngineBlock: 16, OutputFactor: 1, Speed: 1, AtOnce: 100,
		SLO: record.SLO{TTFT: 30 * time.Second, TBT: 100 * time.Millisecond},
	}
}

func server() *standin.Server {
	return &standin.Server{BlockTokens: 16, Vocabulary: 4096, MaxTokens: 10_000, PerToken: 10 * time.Millisecond, Gap: 20 * time.Millisecond}
}

// play replays against a stand-in, in virtual time.
func play(t *testing.T, o *Options, s *standin.Server, requests []trace.Numbered, ctx context.Context) *Result {
	t.Helper()
	maker, err := prompt.NewMaker(o.Scale, o.EngineBlock, 100, 4096, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := client.New(client.Options{URL: "http://s", Model: "tiny", Silence: time.Minute, Transport: standin.Transport{Handler: s}})
	var last Progress
	result, err := Run(ctx, o, requests, maker, c, func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	if last.Sent != len(result.Outcomes) || last.Done != last.Sent || last.Failed != result.Summary.Failed || last.Requests != last.Sent+result.NotSent {
		t.Errorf("progress at the end: %+v", last)
	}
	return result
}

// every makes requests at an interval, each the prompt before with one block more.
func every(ms int64, n int) []trace.Numbered {
	requests := make([]trace.Numbered, n)
	for i := range requests {
		r := &requests[i]
		r.Line, r.TimestampMS, r.InputTokens, r.OutputTokens = i+1, 1000+int64(i)*ms, int64(i+1)*512, 4
		for id := range i + 1 {
			r.HashIDs = append(r.HashIDs, int64(id))
		}
	}
	return requests
}

func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.ClosedLoop, o.AtOnce = true, 1
		result := play(t, o, server(), every(0, 20), t.Context())
		s := result.Summary
		if s.Answered != 20 || result.Ended != nil || result.NotSent != 0 || s.OutputTokens != 80 {
			t.Fatalf("%+v", s)
		}
		// One at a time: what must be, may be and is in the trace is one.
		want := int64(0)
		for i, got := range result.Outcomes {
			if got.CachedTokens != i*32 || got.Must != i*32 || got.May != i*32 || got.InOrder != i*32 {
				t.Errorf("request %d: cached %d, must %d, may %d, trace %d", i, got.CachedTokens, got.Must, got.May, got.InOrder)
			}
			want += int64(i) * 32
			if got.TTFT() != 320*time.Millisecond || got.End-got.First != 60*time.Millisecond || got.TailGap != 20*time.Millisecond {
				t.Errorf("request %d: TTFT %v, then %v", i, got.TTFT(), got.End-got.First)
			}
		}
		if s.Cached.AsExpected != 20 || s.Cached.Tokens != want || result.InOrder != want {
			t.Errorf("cached %+v, want %d", s.Cached, want)
		}
	})
}

// The server takes 320 ms a request, and one comes each 100 ms: the wait in its
// queue belongs to each request's time to first token. A client that waited for
// answers would see 320 ms every time.
func TestOpenLoopHidesNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, atOnce := range []int{100, 2} {
			o := options()
			o.AtOnce = atOnce
			result := play(t, o, server(), every(100, 10), t.Context())
			for i, got := range result.Outcomes {
				due := time.Duration(i) * 100 * time.Millisecond
				wait := time.Duration(i+1)*320*time.Millisecond - due
				if got.Due != due || got.TTFT() < wait || got.TTFT() > wait+time.Duration(i)*60*time.Millisecond {
					t.Errorf("at most %d at once, request %d: due %v, TTFT %v, want %v", atOnce, i, got.Due, got.TTFT(), wait)
				}
				if late := got.Sent > got.Due; late != (atOnce == 2 && i >= 2) {
					t.Errorf("at most %d at once, request %d: due at %v, sent at %v", atOnce, i, got.Due, got.Sent)
				}
			}
			if c := result.Summary.Cached; c.AsExpected != 10 || c.Must > c.Tokens || c.May < c.Tokens {
				t.Errorf("cached %+v", c)
			}
		}
	})
}

func TestSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Speed = 4
		result := play(t, o, server(), every(2000, 5), t.Context())
		for i, got := range result.Outcomes {
			if want := time.Duration(i) * 500 * time.Millisecond; got.Due != want || got.Sent != want {
				t.Errorf("request %d: due %v, sent %v, want %v", i, got.Due, got.Sent, want)
			}
		}
	})
}

func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := server()
		faults := map[int]standin.Fault{1: standin.Broken, 3: standin.Cut, 4: standin.Hung, 6: standin.Noise, 8: standin.Short, 9: standin.Full}
		s.Fault = func(place int) standin.Fault { return faults[place] }
		o := options()
		o.ClosedLoop, o.AtOnce = true, 1
		result := play(t, o, s, every(0, 12), t.Context())
		want := map[int]client.Kind{2: client.ServerError, 4: client.CutOff, 5: client.Stalled, 7: client.Garbage, 9: client.WrongLength, 10: client.Refused}
		for _, got := range result.Outcomes {
			switch {
			case got.Err == nil && want[got.Line] == "":
			case got.Err == nil || client.KindOf(got.Err) != want[got.Line]:
				t.Errorf("line %d: %v, want %q", got.Line, got.Err, want[got.Line])
			}
		}
		// What was cut off in mid-stream was computed, what was refused was not.
		if c := result.Summary; c.Failed != 6 || c.Answered != 6 || c.Cached.AsExpected != 6 || result.Ended != nil {
			t.Errorf("%+v", c)
		}
	})
}

func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+400*time.Millisecond)
		defer cancel()
		result := play(t, options(), server(), every(5000, 10), ctx)
		if !errors.Is(result.Ended, context.DeadlineExceeded) || result.NotSent != 7 || result.Summary.Answered != 3 {
			t.Errorf("%v, %d not sent, %+v", result.Ended, result.NotSent, result.Summary)
		}
		// In mid-stream.
		ctx, cancel = context.WithTimeout(t.Context(), 330*time.Millisecond)
		defer cancel()
		result = play(t, options(), server(), every(5000, 2), ctx)
		if len(result.Outcomes) != 1 || client.KindOf(result.Outcomes[0].Err) != client.Interrupted || result.NotSent != 1 {
			t.Errorf("%+v", result)
		}
	})
}

func TestServerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := server()
		s.Fault = func(place int) standin.Fault {
			if place < 5 {
				return standin.Fine
			}
			return standin.Reset
		}
		o := options()
		o.ClosedLoop, o.AtOnce = true, 1
		result := play(t, o, s, every(0, 100), t.Context())
		if !errors.Is(result.Ended, ErrGone) || result.NotSent != 100-5-giveUp || result.Summary.Answered != 5 {
			t.Errorf("%v, %d not sent, %d answered", result.Ended, result.NotSent, result.Summary.Answered)
		}
	})
}

func TestTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.MaxTokens = 3*32 + 4
		result := play(t, o, server(), every(1000, 5), t.Context())
		if len(result.Outcomes) != 3 || len(result.Skipped) != 2 || result.Skipped[0].Line != 4 || result.Skipped[1].Line != 5 {
			t.Errorf("%d sent, skipped %v", len(result.Outcomes), result.Skipped)
		}
	})
}

// TestTooLate: a request that is due in years is named and left out of an open loop; a
// closed one knows no times.
func TestTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		requests := every(1000, 5)
		requests[4].TimestampMS = 1 << 41
		result := play(t, o, server(), requests, t.Context())
		if len(result.Outcomes) != 4 || len(result.Skipped) != 1 || result.Skipped[0].Line != 5 || !strings.Contains(result.Skipped[0].Why, "days after the first") {
			t.Errorf("%d sent, skipped %v", len(result.Outcomes), result.Skipped)
		}
		o.Speed = 1e-300
		if result := play(t, o, server(), every(1000, 5), t.Context()); len(result.Outcomes) != 1 || len(result.Skipped) != 4 {
			t.Errorf("very slowly: %d sent, skipped %v", len(result.Outcomes), result.Skipped)
		}
		o.ClosedLoop = true
		if result := play(t, o, server(), requests, t.Context()); len(result.Outcomes) != 5 || len(result.Skipped) != 0 {
			t.Errorf("in a closed loop: %d sent, skipped %v", len(result.Outcomes), result.Skipped)
		}
	})
}

// A server that tells too much or too little is found out.
func TestWrongCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		warm := server()
		o := options()
		o.ClosedLoop, o.AtOnce = true, 1
		play(t, o, warm, every(0, 5), t.Context())
		if c := play(t, o, warm, every(0, 5), t.Context()).Summary.Cached; c.TooMany != 5 {
			t.Errorf("a server that was warm: %+v", c)
		}
		silent := server()
		silent.Silent = true
		if c := play(t, o, silent, every(0, 5), t.Context()).Summary; c.Cached.Untold != 5 || c.Answered != 5 {
			t.Errorf("a server that is silent: %+v", c)
		}
	})
}

func TestOptions(t *testing.T) {
	for i, spoil := range []func(o *Options){
		func(o *Options) { o.Speed = 0 }, func(o *Options) { o.AtOnce = 0 }, func(o *Options) { o.OutputFactor = -1 },
		func(o *Options) { o.SLO.TBT = 0 }, func(o *Options) { o.EngineBlock = 48 },
	} {
		o := options()
		spoil(o)
		if _, err := Run(t.Context(), o, nil, nil, nil, nil); !errors.Is(err, ErrOptions) && !errors.Is(err, prompt.ErrScale) {
			t.Error(fmt.Sprint(i), err)
		}
	}
}
