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

func TestNobodyWatches(*testing.T) {
	var g *Group
	l := g.Join()
	l.Beat()
	l.Leave()
}
