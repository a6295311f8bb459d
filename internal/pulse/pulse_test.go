package pulse

import "testing"

func TestARoundNeedsEveryLoop(t *testing.T) {
	rounds := 0
	g := New(func() { rounds++ })
	a, b := g.Join(), g.Join()
	want := func(n int, what string) {
		t.Helper()
		if rounds != n {
			t.Fatalf("%s: %d rounds, want %d", what, rounds, n)
		}
	}
	for range 10 {
		a.Beat()
	}
	want(0, "one loop is stuck")
	b.Beat()
	want(1, "both went round")
	b.Beat()
	want(1, "the next round needs both again")
	a.Beat()
	want(2, "it has both")

	c := g.Join()
	a.Beat()
	b.Beat()
	want(2, "a loop that joined counts at once")
	c.Leave()
	want(3, "the others waited for one that left")
	c.Leave()
	c.Beat()
	a.Beat()
	want(3, "one that has left counts no more")
	b.Leave()
	want(4, "the last round's other")
	a.Leave()
	want(4, "nobody is left to say anything")
}

// A loop that waits for somebody else is not waited for, and has gone round when
// it comes back.
func TestAwait(t *testing.T) {
	rounds := 0
	g := New(func() { rounds++ })
	a, b := g.Join(), g.Join()
	a.Await(func() {
		b.Beat()
		b.Beat()
		if rounds != 2 {
			t.Errorf("%d rounds while one loop waits, want the other's 2", rounds)
		}
	})
	if rounds != 2 {
		t.Errorf("%d rounds, want 2: the third needs b", rounds)
	}
	b.Beat()
	if rounds != 3 {
		t.Errorf("%d rounds, want 3: both went round", rounds)
	}
	b.Beat()
	if rounds != 3 {
		t.Errorf("%d rounds, want 3: the next needs a again", rounds)
	}
}

func TestNobodyWatches(t *testing.T) {
	var g *Group
	l := g.Join()
	l.Beat()
	waited := false
	l.Await(func() { waited = true })
	if !waited {
		t.Error("it did not wait")
	}
	l.Leave()
}
