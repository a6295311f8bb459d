package scheduler

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// linear are costs that can be computed in the head: a millisecond for each token
// that is computed or moved, and for each sequence and thousand tokens decoded.
type linear struct{}

func (linear) Prefill(tokens, cached int) time.Duration { return ms(tokens - cached) }
func (linear) Work(tokens, cached int) time.Duration    { return ms(tokens - cached) }
func (linear) Transfer(tokens int) time.Duration        { return ms(tokens) / 10 }
func (linear) Iteration(sequences int, context int64) time.Duration {
	return ms(sequences) + ms(int(context/1000))
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func newScheduler(t testing.TB, change func(*Options)) *Scheduler {
	t.Helper()
	o := Default()
	if change != nil {
		change(&o)
	}
	s, err := New(o, linear{}, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func request() *Request { return &Request{Tokens: 1000, Blocks: 10, BlockTokens: 100} }

// TestTransferRule: when the longer prefix of another instance is fetched.
func TestTransferRule(t *testing.T) {
	for name, c := range map[string]struct {
		local, best int
		change      func(*Options)
		wait        time.Duration
		source      int
	}{
		"just the threshold":           {2, 8, nil, 0, Nobody},
		"more than the threshold":      {2, 9, nil, 0, 1},
		"nothing here, something else": {0, 1, nil, 0, 1},
		"nothing anywhere":             {0, 0, nil, 0, Nobody},
		"shorter elsewhere":            {3, 2, func(o *Options) { o.Threshold = 1 }, 0, Nobody},
		"cache-aware never fetches":    {0, 9, func(o *Options) { o.Strategy = CacheAware }, 0, Nobody},
		"by cost, faster":              {8, 9, func(o *Options) { o.Balance = ByCost }, ms(89), 1},
		"by cost, slower":              {8, 9, func(o *Options) { o.Balance = ByCost }, ms(90), Nobody},
		"links are free":               {2, 9, func(o *Options) { o.Balance = ByLinks }, 0, 1},
		"links are taken":              {2, 9, func(o *Options) { o.Balance = ByLinks }, ms(100), Nobody},
	} {
		s := newScheduler(t, c.change)
		d := s.Decide(request(), &Facts{Prefill: []Prefiller{
			{LocalBlocks: c.local}, {LocalBlocks: c.best, ReadyBlocks: c.best, Queue: time.Hour, Egress: c.wait},
		}})
		if d.Prefill != 0 || d.Term.Source != c.source {
			t.Errorf("%s: on %d from %d, want on 0 from %d", name, d.Prefill, d.Term.Source, c.source)
		}
		want := c.local
		if c.source != Nobody {
			want = c.best
		}
		if d.Term.CachedBlocks != want {
			t.Errorf("%s: %d blocks cached, want %d", name, d.Term.CachedBlocks, want)
		}
	}
}

// TestTerms: what the terms are made of, and that the least is taken, the first of
// equals.
func TestTerms(t *testing.T) {
	s := newScheduler(t, nil)
	f := &Facts{Prefill: []Prefiller{
		{Queue: ms(700)},
		{LocalBlocks: 10, ReadyBlocks: 9, Queue: ms(5000), Egress: ms(20)},
		{Queue: ms(700), Ingress: ms(30)},
		{LocalBlocks: 9, ReadyBlocks: 9, Queue: ms(5000), Egress: ms(15)},
	}}
	d := s.Decide(request(), f)
	want := []Term{
		{CachedBlocks: 9, Source: 3, Transfer: ms(15 + 90), Queue: ms(700), Prefill: ms(100), Work: ms(100)},
		{CachedBlocks: 10, Source: Nobody, Queue: ms(5000), Prefill: ms(1), Work: ms(1)},
		{CachedBlocks: 9, Source: 3, Transfer: ms(30 + 90), Queue: ms(700), Prefill: ms(100), Work: ms(100)},
		{CachedBlocks: 9, Source: Nobody, Queue: ms(5000), Prefill: ms(100), Work: ms(100)},
	}
	for i := range want {
		want[i].TTFT = want[i].Transfer + want[i].Queue + want[i].Prefill
		want[i].Objective = want[i].TTFT
		if d.Terms[i] != want[i] {
			t.Errorf("instance %d: %+v, want %+v", i, d.Terms[i], want[i])
		}
	}
	if d.Prefill != 0 || d.Term != want[0] || d.Refused != Accepted || d.Decode != Nobody {
		t.Errorf("decided %+v", d)
	}
	f.Prefill[2].Ingress = 0
	if d := s.Decide(request(), f); d.Prefill != 0 {
		t.Errorf("of equals %d was taken", d.Prefill)
	}
}

// TestStrategies: random takes all, load balancing the fewest outstanding and any
// of several, the others the soonest.
func TestStrategies(t *testing.T) {
	f := &Facts{Prefill: []Prefiller{{Outstanding: 2}, {Outstanding: 1, Queue: time.Hour}, {Outstanding: 1, Queue: time.Hour}, {Outstanding: 3}}}
	for strategy, want := range map[Strategy]string{Random: "0123", LoadBalancing: "12", CacheAware: "0", KVCacheCentric: "0"} {
		s := newScheduler(t, func(o *Options) { o.Strategy = strategy })
		seen := [4]bool{}
		for range 200 {
			seen[s.Decide(request(), f).Prefill] = true
		}
		for i, was := range seen {
			if was != strings.Contains(want, string(rune('0'+i))) {
				t.Errorf("%s: instance %d taken: %v, want those of %s", strategy, i, was, want)
			}
		}
	}
}

// TestWorkWeight: what a placement takes from others counts.
func TestWorkWeight(t *testing.T) {
	f := &Facts{Prefill: []Prefiller{{}, {LocalBlocks: 5, Queue: ms(800)}}}
	for weight, want := range map[float64]int{0: 0, 0.5: 0, 1: 1} {
		s := newScheduler(t, func(o *Options) { o.WorkWeight = weight })
		if d := s.Decide(request(), f); d.Prefill != want {
			t.Errorf("weight %v: instance %d, want %d", weight, d.Prefill, want)
		}
	}
	s := newScheduler(t, func(o *Options) { o.WorkBacklog = ms(400) }) // the mean queue is 400 ms
	if d := s.Decide(request(), f); d.Prefill != 1 {
		t.Error("the backlog does not count")
	}
}

// TestLeast: against a naive reading of the rules, for any facts.
func TestLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "instances")
		f := &Facts{Prefill: make([]Prefiller, n)}
		for i := range f.Prefill {
			local := rapid.IntRange(0, 10).Draw(t, "local")
			f.Prefill[i] = Prefiller{
				LocalBlocks: local, ReadyBlocks: rapid.IntRange(0, local).Draw(t, "ready"), Queue: ms(rapid.IntRange(0, 2000).Draw(t, "queue")),
				Egress: ms(rapid.IntRange(0, 300).Draw(t, "egress")), Ingress: ms(rapid.IntRange(0, 300).Draw(t, "ingress")),
			}
		}
		o := Default()
		o.Threshold = rapid.Float64Range(1, 5).Draw(t, "threshold")
		s, err := New(o, linear{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		best := 0
		for i := range f.Prefill {
			best = max(best, f.Prefill[i].ReadyBlocks)
		}
		least, at := time.Duration(1<<62), -1
		for i, p := range f.Prefill {
			ttft := p.Queue + ms(1000-min(100*p.LocalBlocks, 999))
			if best > p.LocalBlocks && (p.LocalBlocks == 0 || float64(best)/float64(p.LocalBlocks) > o.Threshold) {
				wait := time.Duration(1 << 62)
				for _, q := range f.Prefill {
					if q.ReadyBlocks == best {
						wait = min(wait, q.Egress)
					}
				}
				ttft = p.Queue + ms(1000-min(100*best, 999)) + max(wait, p.Ingress) + ms(100*(best-p.LocalBlocks))/10
			}
			if ttft < least {
				least, at = ttft, i
			}
		}
		if d := s.Decide(request(), f); d.Prefill != at || d.Term.TTFT != least {
			t.Fatalf("instance %d in %v, want %d in %v", d.Prefill, d.Term.TTFT, at, least)
		}
	})
}

// TestPriority: a short prompt goes before a long one that came a little earlier.
func TestPriority(t *testing.T) {
	s := newScheduler(t, func(o *Options) { o.Patience = 5 })
	long := s.Priority(0, ms(1000))
	if s.Priority(ms(4400), ms(100)) >= long || s.Priority(ms(4600), ms(100)) <= long {
		t.Error("a prompt of 0.1 s does not go before one of 1 s for just 4.5 s")
	}
	s = newScheduler(t, nil)
	if s.Priority(ms(7), ms(1000)) != ms(7) {
		t.Error("without patience the order is not that of arrival")
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	s := newScheduler(t, nil)
	f := &Facts{Prefill: make([]Prefiller, 16), Decode: make([]Decoder, 16)}
	r := request()
	s.Decide(r, f)
	if n := testing.AllocsPerRun(100, func() { s.Decide(r, f) }); n != 0 {
		t.Errorf("%v allocations a decision", n)
	}
}

func TestOptions(t *testing.T) {
	bad := Options{Strategy: "best", Balance: ByLinks, Threshold: 0.5, WorkWeight: -1, WorkBacklog: -1, Patience: -1, DecodeAffinity: -1, Admission: AdmitFull, Slack: -1}
	_, err := New(bad, linear{}, nil)
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{`"best"`, "threshold 0.5", "link wait", "work weight", "work backlog", "patience", "decode affinity", "residence", "slack"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	for name, change := range map[string]func(*Options){"balance": func(o *Options) { o.Balance = "even" }, "admission": func(o *Options) { o.Admission = "some" }} {
		o := Default()
		change(&o)
		if o.Validate() == nil {
			t.Errorf("wrong %s taken", name)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	s := newScheduler(b, nil)
	f := &Facts{Prefill: make([]Prefiller, 16), Decode: make([]Decoder, 16)}
	for i := range f.Prefill {
		f.Prefill[i] = Prefiller{LocalBlocks: i % 5, ReadyBlocks: i % 5, Queue: ms(i)}
	}
	r := request()
	b.ReportAllocs()
	for b.Loop() {
		s.Decide(r, f)
	}
}

// TestMomentsThatHavePassed: a wait that is over is none, and saves nobody anything.
func TestMomentsThatHavePassed(t *testing.T) {
	s := newScheduler(t, func(o *Options) { o.WorkBacklog = ms(1) })
	past, now := Prefiller{Queue: -time.Hour, Egress: -time.Hour, Ingress: -time.Hour, LocalBlocks: 5, ReadyBlocks: 5}, Prefiller{LocalBlocks: 5, ReadyBlocks: 5}
	got := slices.Clone(s.Decide(request(), &Facts{Prefill: []Prefiller{past, {}, past}}).Terms)
	want := s.Decide(request(), &Facts{Prefill: []Prefiller{now, {}, now}}).Terms
	if !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// TestNothingToPlace: a prompt of nothing has nothing cached, and without an instance
// all is refused.
func TestNothingToPlace(t *testing.T) {
	for _, tokens := range []int{0, 1} {
		r := &Request{Tokens: tokens, BlockTokens: 100}
		if got := r.cached(3); got != 0 {
			t.Errorf("%d tokens have %d cached", tokens, got)
		}
	}
	for _, strategy := range Strategies() {
		s := newScheduler(t, func(o *Options) { o.Strategy, o.WorkBacklog = strategy, ms(1) })
		d := s.Decide(request(), &Facts{Decode: make([]Decoder, 1)})
		if d.Refused != NoPrefiller || d.Prefill != Nobody || d.Decode != Nobody || len(d.Terms) > 0 {
			t.Errorf("%s: %+v", strategy, d)
		}
	}
}

// TestOptionsAreFinite: what no duration can be multiplied with is refused.
func TestOptionsAreFinite(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), 1e300} {
		for name, change := range map[string]func(*Options){
			"threshold": func(o *Options) { o.Threshold = v * 1e10 }, "work weight": func(o *Options) { o.WorkWeight = v }, "patience": func(o *Options) { o.Patience = v },
			"decode affinity": func(o *Options) { o.DecodeAffinity = v }, "slack": func(o *Options) { o.Slack = v },
		} {
			o := Default()
			change(&o)
			if err := o.Validate(); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s %v: %v", name, v, err)
			}
		}
	}
	for _, v := range []float64{math.NaN(), math.Inf(1)} {
		if err := (&ReplicationOptions{Uses: v, HalfLife: 1}).Validate(); !errors.Is(err, ErrOptions) {
			t.Errorf("uses %v: %v", v, err)
		}
	}
}
