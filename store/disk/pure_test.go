package disk

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBreaker(t *testing.T) {
	now := time.Unix(1000, 0)
	var b breaker
	b.probed(now.Add(-time.Hour))
	for range failuresToOpen - 1 {
		if b.failed(now, false) || b.state != inService {
			t.Fatal("opened too early")
		}
	}
	b.succeeded()
	for range failuresToOpen - 1 {
		b.failed(now, false)
	}
	if b.state != inService {
		t.Fatal("errors in between successes opened it")
	}
	if !b.failed(now, false) || b.state != outOfService || b.probeIn(now) != firstCooldown {
		t.Fatalf("after three errors in a row: %+v", b)
	}
	b.failed(now.Add(time.Second), true) // an echo
	if b.probeIn(now) != firstCooldown || b.opened != 1 {
		t.Fatalf("an echo counted: %+v", b)
	}
	for _, seconds := range []int{4, 8, 16, 32, 60, 60} {
		b.probe()
		b.failed(now, true)
		if got := b.probeIn(now); int(got.Seconds()) != seconds {
			t.Fatalf("probe in %v, want %ds", got, seconds)
		}
	}
	b.probe()
	b.probed(now)
	if b.failed(now, true); b.probeIn(now) != longestCooldown {
		t.Errorf("one that fails at once again is probed in %v", b.probeIn(now))
	}
	b.probed(now)
	if b.failed(now.Add(longestCooldown), true); b.probeIn(now.Add(longestCooldown)) != firstCooldown {
		t.Errorf("one that was well is probed in %v", b.probeIn(now.Add(longestCooldown)))
	}
}

// TestBudgetIsKept over any time, by a second's worth and one batch at most.
func TestBudgetIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const rate, batch = 1000, 400
		now := time.Unix(1000, 0)
		b := newBudget(rate, now)
		passed, spent := time.Duration(0), 0
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "back") {
				// What it goes forth again by is counted once more; it is rare.
				now = now.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "ms")) * time.Millisecond)
			}
			if wait := b.wait(now); wait > 0 {
				now = now.Add(wait)
				passed += wait
				if b.wait(now) != 0 {
					t.Fatalf("after the wait of %v there is another", wait)
				}
			}
			n := rapid.IntRange(1, batch).Draw(t, "bytes")
			b.spend(now, n)
			spent += n
			if most := rate*passed.Seconds() + rate + batch; float64(spent) > most {
				t.Fatalf("%d bytes in %v", spent, passed)
			}
		}
	})
	if b := newBudget(0, time.Time{}); b.wait(time.Unix(1, 0)) != 0 {
		t.Error("no bound bounds")
	}
}

func TestSpeed(t *testing.T) {
	s := newSpeed()
	now := time.Unix(1000, 0)
	for range 100 { // two at a time, 10 MB each, 100 ms
		s.begin(now)
		s.begin(now)
		now = now.Add(100 * time.Millisecond)
		s.end(now, 10e6)
		s.end(now, 10e6)
		now = now.Add(time.Hour) // idle time does not count
	}
	if s.rate < 190e6 || s.rate > 210e6 {
		t.Errorf("%.0f bytes a second, want 200e6", s.rate)
	}
}

// TestCatalogAgainstMap: the table of chains is a map, and gives entries back.
func TestCatalogAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCatalog(8)
		model := map[[2]uint64]uint32{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			key := [2]uint64{uint64(rapid.IntRange(0, 20).Draw(t, "key")) % 11, 7}
			_, there := model[key]
			switch {
			case there:
				c.remove(model[key])
				c.release(model[key])
				delete(model, key)
			case !c.full():
				model[key] = c.insert(&entry{key: key})
			case len(model) != 8:
				t.Fatalf("full with %d entries", len(model))
			}
			for k := range uint64(11) {
				id, found := c.find([2]uint64{k, 7})
				want, there := model[[2]uint64{k, 7}]
				if found != there || found && id != want {
					t.Fatalf("find(%d) = %d, %v, want %d, %v", k, id, found, want, there)
				}
			}
			if c.live != len(model) {
				t.Fatalf("%d live, want %d", c.live, len(model))
			}
		}
	})
}

func TestNamesAreUsedAgain(t *testing.T) {
	n := newNames[string]()
	var ids []uint16
	for i := range maxNames {
		id, ok := n.take(string(rune(i)))
		if !ok || slices.Contains(ids, id) {
			t.Fatalf("name %d: %d, %v", i, id, ok)
		}
		ids = append(ids, id)
	}
	if _, ok := n.take("one more"); ok {
		t.Error("more names than there may be")
	}
	if again, ok := n.take(string(rune(5))); !ok || again != ids[5] {
		t.Errorf("a known name got number %d, %v", again, ok)
	}
	n.drop(ids[5])
	n.drop(ids[5])
	if id, ok := n.take("one more"); !ok || id != ids[5] || n.value(id) != "one more" {
		t.Errorf("the freed number was not used: %d, %v", id, ok)
	}
}
