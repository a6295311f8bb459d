package evict

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// validate checks what holds between any two calls.
func (h *Hazard) validate(t interface{ Fatalf(string, ...any) }, resident map[uint32]bool) {
	seen := map[uint32]bool{}
	meet := func(e *ends, listed bool, kind int, check func(r uint32) bool) (n int) {
		last := nobody
		for r := e.front; r != nobody; r = h.links[r].toBack {
			x := &h.records[r]
			if seen[r] || !resident[r] || h.links[r].toFront != last || (x.state&isListed != 0) != listed || listed && h.listKind(r) != kind || !check(r) {
				t.Fatalf("record %d (%+v) is not where it belongs", r, *x)
			}
			seen[r], last = true, r
			n++
		}
		if e.back != last {
			t.Fatalf("a list ends at %d, its back is %d", last, e.back)
		}
		return n
	}
	if n := meet(&h.run.ends, false, 0, func(uint32) bool { return true }); n != h.run.n {
		t.Fatalf("the run has %d chunks, counted %d", n, h.run.n)
	}
	for class, a := range h.lists {
		if (a != nil) != (h.used>>class&1 == 1) {
			t.Fatalf("class %d: used %#x", class, h.used)
		}
		if a == nil {
			continue
		}
		for kind := range a.ring {
			for i := range a.ring[kind] {
				n := meet(&a.ring[kind][i], true, kind, func(r uint32) bool {
					x := &h.records[r]
					return int(x.class) == class && h.clock.slot-x.lastSlot < slotRing && int(x.lastSlot%slotRing) == i
				})
				if (n > 0) != (a.some[kind]>>i&1 == 1) {
					t.Fatalf("kind %d slot %d has %d chunks, its bit says otherwise", kind, i, n)
				}
			}
			meet(&a.ancient[kind], true, kind, func(r uint32) bool { return h.clock.slot-h.records[r].lastSlot >= slotRing })
		}
		for rank := range a.cursor {
			place := int(h.learn.order[rank])
			if _, some := a.oldest(h.links, place, h.clock.slot, func(uint32) bool { return false }); some {
				t.Fatalf("class %d: place %d before the cursor has chunks", class, place)
			}
		}
	}
	if len(seen) != len(resident) || h.n != len(resident) {
		t.Fatalf("%d chunks found, Len() %d, %d are resident", len(seen), h.n, len(resident))
	}
}

// TestHazardStructure runs random requests through a store that is large enough
// to leave LRU behind, and looks at everything after each.
func TestHazardStructure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const records = 200
		h := NewHazard(records)
		byKey, keyOf, resident := map[uint64]uint32{}, map[uint32]uint64{}, map[uint32]bool{}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		busy := func(r uint32) bool { return r%7 == uint32(random.IntN(40)) }
		forget := func(r uint32) {
			delete(byKey, keyOf[r])
			delete(resident, r)
		}
		learned := false
		for range rapid.IntRange(1, 1500).Draw(t, "requests") {
			chain, length := uint64(random.IntN(150))*random.Uint64N(2)+1000*random.Uint64N(3), 1+random.IntN(3)
			rootFirst := random.IntN(3) == 0
			for i := range length {
				if !rootFirst {
					i = length - 1 - i
				}
				key := (chain*8 + uint64(i) + 1) * 0x9E3779B97F4A7C15
				if r, here := byKey[key]; here {
					h.Touch(r)
					continue
				}
				r := uint32(len(resident))
				if len(resident) == records {
					var ok bool
					if r, ok = h.Victim(busy); !ok {
						continue
					}
					forget(r)
				} else {
					for resident[r] {
						r = (r + 1) % records
					}
				}
				c := Chunk{Key: key, Depth: uint32(i), Class: uint8(chain % 2)}
				if i > 0 {
					c.Parent = (chain*8 + uint64(i)) * 0x9E3779B97F4A7C15
				}
				h.Insert(r, c)
				byKey[key], keyOf[r], resident[r] = r, key, true
			}
			if r := uint32(random.IntN(records)); random.IntN(10) == 0 && resident[r] {
				h.Remove(r)
				forget(r)
			}
			learned = learned || !h.recency
			if random.IntN(8) == 0 {
				h.validate(t, resident)
			}
		}
		h.validate(t, resident)
		t.Logf("learned: %v", learned)
	})
}

// TestHazardIsLRUWhenSmall: in a store that holds few requests the victims are
// LRU's.
func TestHazardIsLRUWhenSmall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const records, length = 60, 4
		h, lru := NewHazard(records), NewLRU(records)
		byKey, keyOf := map[uint64]uint32{}, map[uint32]uint64{}
		free := records
		for range rapid.IntRange(1, 200).Draw(t, "requests") {
			chain := rapid.Uint64Range(1, 40).Draw(t, "chain")
			for i := length - 1; i >= 0; i-- { // leaf first
				key := chain<<32 + uint64(i) + 1
				if r, here := byKey[key]; here {
					h.Touch(r)
					lru.Touch(r)
					continue
				}
				free--
				r := uint32(max(free, 0))
				if free < 0 {
					got, _ := h.Victim(func(uint32) bool { return false })
					want, _ := lru.Victim(func(uint32) bool { return false })
					if got != want {
						t.Fatalf("victim %d (%#x), LRU's is %d (%#x)", got, keyOf[got], want, keyOf[want])
					}
					delete(byKey, keyOf[got])
					r = got
				}
				c := Chunk{Key: key, Depth: uint32(i)}
				if i > 0 {
					c.Parent = key - 1
				}
				h.Insert(r, c)
				lru.Insert(r, c)
				byKey[key], keyOf[r] = r, key
			}
		}
	})
}

// TestWorth compares with every age up to which a chunk could be kept.
func TestWorth(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		var h hazards
		for b := range h {
			h[b] = random.Float64() * random.Float64()
		}
		for from := range buckets {
			want := 0.0
			for to := from; to < buckets; to++ {
				hits, time, left := 0.0, 0.0, 1.0
				for b := from; b <= to; b++ {
					hits += left * h[b]
					time += left * (1 - h[b]/2) * bucketSlots(b)
					left *= 1 - h[b]
				}
				want = max(want, hits/time)
			}
			if got := h.worth(from); math.Abs(got-want) > 1e-12 {
				t.Fatalf("worth(%d) of %v = %v, want %v", from, h, got, want)
			}
		}
	}
}

// TestLifeTable: a kind whose chunks come back at one age, half of them, has its
// hazard there.
func TestLifeTable(t *testing.T) {
	var l learner
	const age, each = 5, 1000
	for slot := uint32(1); slot < 400; slot++ {
		l.nextSlot(slot, 0.99)
		for range each {
			l.started(kindReused, slot)
		}
		if slot > age {
			for range each / 2 {
				l.reused(kindReused, slot, age)
			}
		}
	}
	common := l.common()
	h := l.ofKind(kindReused, &common)
	for b := range h {
		want := 0.0
		if b == bucketOf(age) {
			want = 0.5
		}
		if math.Abs(h[b]-want) > 0.03 {
			t.Errorf("bucket %d: hazard %.3f, want %.2f", b, h[b], want)
		}
	}
	if at, after := h.worth(0), h.worth(bucketOf(age)+1); at <= after {
		t.Errorf("worth %.4f before the age at which chunks come back, %.4f after it", at, after)
	}
}

func TestGhosts(t *testing.T) {
	g := newGhosts(1000)
	key := func(i uint64) uint64 { return i * 0x9E3779B97F4A7C15 }
	for i := range uint64(500) {
		g.put(key(i+1), newGhost(key(i+1), 90, 100, uint8(i%learnedKinds), uint8(i%20)), 100)
	}
	for i := range uint64(500) {
		x, ok := g.take(key(i+1), 101)
		if !ok || x.kind() != int(i%learnedKinds) || x.uses() != min(uint8(i%20), ghostMaxUses) || x.age(101) != 11 {
			t.Fatalf("ghost %d: %v, kind %d, uses %d, age %d", i, ok, x.kind(), x.uses(), x.age(101))
		}
		if _, again := g.take(key(i+1), 101); again {
			t.Fatalf("ghost %d is there twice", i)
		}
		if _, ok := g.take(key(i+1001), 101); ok {
			t.Fatalf("key %d was never put", i+1001)
		}
	}
	g.put(key(1), newGhost(key(1), 90, 100, 1, 1), 100)
	if _, ok := g.take(key(1), 100+ghostSlots+1); ok {
		t.Error("a ghost is not forgotten in time")
	}
	// Sets that overflow forget what went first.
	for i := range uint64(100_000) {
		g.put(key(i+1), newGhost(key(i+1), 1, uint32(i/1000), 1, 1), uint32(i/1000))
	}
	if _, ok := g.take(key(100_000), 99); !ok {
		t.Error("the last one is not there")
	}
	if _, ok := g.take(key(1), 1); ok {
		t.Error("the first one is still there")
	}
}
