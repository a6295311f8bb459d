package fleet

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSpeedsAreLearned: prompts of many lengths that take what an engine with known
// speeds needs, with noise, and now and then ten times as long.
func TestSpeedsAreLearned(t *testing.T) {
	truth := vector{20e-3, 120e-3, 8e-4, 4e-3}
	random := rand.New(rand.NewPCG(1, 2))
	c := NewCosts()
	for range 2000 {
		tokens := 16 + random.IntN(1<<(5+random.IntN(12)))
		x := prefillFeatures(tokens, random.IntN(tokens))
		took := x.dot(&truth) * math.Exp(0.1*random.NormFloat64())
		if random.IntN(20) == 0 {
			took *= 10
		}
		c.observePrefill(&x, seconds(took))
	}
	for _, prompt := range [][2]int{{100, 0}, {1000, 0}, {10_000, 0}, {10_000, 9000}, {60_000, 0}, {60_000, 30_000}} {
		x := prefillFeatures(prompt[0], prompt[1])
		want, got := x.dot(&truth), c.Prefill(prompt[0], prompt[1]).Seconds()
		if off := math.Abs(got/want - 1); off > 0.2 {
			t.Errorf("%d tokens, %d cached: %.3f s, want %.3f s", prompt[0], prompt[1], got, want)
		}
	}
	if work, all := c.Work(10_000, 9000), c.Prefill(10_000, 9000); work >= all || c.Transfer(1000) <= 0 {
		t.Errorf("work of %v in a prefill of %v, a transfer of %v", work, all, c.Transfer(1000))
	}
}

// TestSpeedsChange: what is twice as slow from some time on is learned anew.
func TestSpeedsChange(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	c := NewCosts()
	pace := 10e-3
	feed := func() {
		for range 600 {
			sequences := 1 + random.IntN(64)
			x := stepFeatures(float64(sequences), float64(sequences)*2000)
			for range sequences { // each tells of it
				c.observeStep(&x, seconds((pace+float64(sequences)*0.5e-3)*(0.95+0.1*random.Float64())))
			}
		}
	}
	feed()
	before := c.Iteration(32, 64_000)
	pace *= 3
	feed()
	after := c.Iteration(32, 64_000)
	if math.Abs(before.Seconds()-26e-3) > 3e-3 || math.Abs(after.Seconds()-46e-3) > 5e-3 {
		t.Errorf("a step of 32 sequences: %v, later %v; want 26 ms and 46 ms", before, after)
	}
}

// TestNothingObservedBreaksAModel: whatever is observed, estimates are finite, not
// negative, and rise with the work.
func TestNothingObservedBreaksAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCosts()
		for range rapid.IntRange(0, 60).Draw(t, "observations") {
			tokens := rapid.IntRange(0, 1<<20).Draw(t, "tokens")
			x := prefillFeatures(tokens, rapid.IntRange(0, tokens).Draw(t, "cached"))
			took := time.Duration(rapid.Int64Range(-1, int64(longest)).Draw(t, "took"))
			var f factor
			f.observe(c.observePrefill(&x, took), took)
			if v := f.value(); !(v > 0.5 && v < 2) {
				t.Fatalf("one observation makes an engine %v times as slow", v)
			}
			c.observeStep(&x, took)
		}
		last := time.Duration(-1)
		for _, tokens := range []int{0, 1, 100, 10_000, 1_000_000} {
			got := c.Prefill(tokens, 0)
			if got < last || got < 0 || got > longest {
				t.Fatalf("%d tokens take %v, fewer %v", tokens, got, last)
			}
			last = got
		}
		if c.Prefill(1000, 900) > longest || c.Iteration(1<<20, 1<<40) > longest {
			t.Fatal("an estimate is beyond all bounds")
		}
	})
}

// TestFactors: a constant ratio is learned, and none goes beyond the bounds.
func TestFactors(t *testing.T) {
	var slow, wild, short factor
	for range 200 {
		slow.observe(3, time.Second)
		wild.observe(math.Inf(1), time.Hour)
	}
	for range 200 {
		short.observe(10, time.Millisecond) // a mood
	}
	if v := short.value(); v > 1.7 {
		t.Errorf("short times make an engine %v times as slow", v)
	}
	if v := slow.value(); math.Abs(v-3) > 0.01 {
		t.Errorf("%v, want 3", v)
	}
	if v := wild.value(); v > mostFactor+0.01 {
		t.Errorf("%v, want at most %v", v, mostFactor)
	}
	if v := factor(0).value(); v != 1 {
		t.Errorf("an engine that was not seen is %v times as slow", v)
	}
}
