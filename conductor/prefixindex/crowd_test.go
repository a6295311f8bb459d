package prefixindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Two thousand records of one key come among others and go again, in any order: all are found,
// and the directory is what the others need. Those that come afterwards are parted from them.
func TestACrowdOfOneKey(t *testing.T) {
	for others, most := range map[int]int{0: 1, 500: 16, 20_000: 512} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 1))
			var x table
			x.init()
			b := testBudget(0)
			b.spend(tableBytes)
			in := map[key][]link{}
			n := link(0)
			add := func(k key) {
				n++
				if !x.insert(k, n, b) {
					t.Fatalf("record %d of key %x is refused", n, k)
				}
				in[k] = append(in[k], n)
			}
			const crowd = key(0x9E3779B9)
			for i := range max(2000, others) {
				if i < 2000 {
					add(crowd)
				}
				if i < others {
					add(key(random.Uint32()))
				}
			}
			checkCells(t, &x, in)
			if len(x.dir) > most {
				t.Errorf("a directory of %d, at most %d were looked for", len(x.dir), most)
			}
			for range 30_000 {
				add(key(random.Uint32()))
			}
			checkCells(t, &x, in)
			if len(x.dir) > 512 {
				t.Errorf("a directory of %d", len(x.dir))
			}
			if s := x.segment(crowd); int(s.used) > 2000+4*leastParted {
				t.Errorf("%d are not parted from 2000", int(s.used)-2000)
			}
			if b.own != int64(x.bytes()) {
				t.Errorf("%d bytes, %d counted", x.bytes(), b.own)
			}
			links := in[crowd]
			random.Shuffle(len(links), func(i, j int) { links[i], links[j] = links[j], links[i] })
			for len(links) > 0 {
				some := min(len(links), 300)
				for _, l := range links[:some] {
					x.remove(crowd, l)
				}
				links = links[some:]
				in[crowd] = slices.Clone(links)
				checkCells(t, &x, in)
			}
			if list := x.beyondOf(x.segment(crowd)); len(list) > 0 {
				t.Errorf("%d cells are beyond", len(list))
			}
		})
	}
}

// Where there is no memory for a split, there is none for cells beyond: who looks reads all of
// those, and only of what is alike nothing better can be had.
func TestNothingIsBeyondForWantOfMemory(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var x table
	x.init()
	const list = beyondBytes + beyondStep*cellBytes
	b := testBudget((segmentUnits-1)*unitBytes + list)
	for n := range link(2000) {
		if x.insert(key(random.Uint32()), n+1, b) != (n < segmentCells) {
			t.Fatalf("record %d: %v", n, n >= segmentCells)
		}
	}
}

// What was looked for before a crowd's segment was split is looked for anew, also where the
// segment has as many cells again.
func TestASightOfASegmentThatWasSplit(t *testing.T) {
	const crowd, other = key(1), key(1<<31 + 1)
	var x table
	x.init()
	b, n := testBudget(0), link(0)
	add := func(k key, times int) {
		for range times {
			n++
			x.insert(k, n, b)
		}
	}
	add(crowd, 1000)
	add(other, leastParted)
	var a ahead
	a.keys = []key{other}
	x.look(&a)
	add(crowd, leastParted)
	l, way := x.from(&a.seen[0])
	found := 0
	for ; l != 0; l = way.next() {
		found++
	}
	if len(x.dir) != 2 || x.segment(crowd).used != a.seen[0].used || found != leastParted || way.segment != x.segment(other) {
		t.Errorf("%d of %d were found, directory of %d, %d cells", found, leastParted, len(x.dir), x.segment(crowd).used)
	}
}

// Engines whose hashes are their own hold one block: each is found, and the directory stays
// as it is.
func TestABlockOfManyEnginesWithHashesOfTheirOwn(t *testing.T) {
	const engines = 2000
	d := newTold(t, Options{})
	var want []Match
	var sources []*Source
	for i := range engines {
		src := d.open(Origin{Instance: fmt.Sprint(i)})
		apply(src, calledBy(kvevents.Hash(i+1)))
		sources = append(sources, src)
		want = append(want, onGPU(fmt.Sprint(i), 4))
	}
	d.expect(Query{Tokens: tokensOf(1)}, sorted(slices.Clone(want))...)
	if n := len(sources[0].space.tables[byChain].dir); n > 1 {
		t.Errorf("a directory of %d", n)
	}
	left := want[:0]
	for i, src := range sources {
		if i%4 != 0 {
			apply(src, gone("GPU", kvevents.Hash(i+1)))
		} else {
			left = append(left, want[i])
		}
	}
	d.expect(Query{Tokens: tokensOf(1)}, sorted(left)...)
}

// calledBy tells of the block of hash 1, by another hash.
func calledBy(hash kvevents.Hash) *kvevents.BlockStored {
	e := blocks("GPU", 0, 1)
	e.Hashes[0] = hash
	return e
}

// Behind as many names of one block as there may be, who tells of one more is marked, and
// no longer dropped where there is room again.
func TestABlockOfTooManyNames(t *testing.T) {
	d := newTold(t, Options{})
	a, b := d.open(Origin{Instance: "a"}), d.open(Origin{Instance: "b"})
	const most = segmentCells + maxBeyond
	for i := range kvevents.Hash(most) {
		apply(a, calledBy(i+1))
	}
	apply(b, calledBy(most+1))
	if a.Stats().Dropped != 0 || b.Stats().Dropped != 1 {
		t.Errorf("%d and %d are dropped", a.Stats().Dropped, b.Stats().Dropped)
	}
	d.expect(Query{Tokens: tokensOf(1)}, onGPU("a", 4), Match{Instance: "b", Truncated: true})
	apply(a, gone("GPU", 7))
	apply(b, calledBy(most+1))
	held := onGPU("b", 4)
	held.Truncated = true
	d.expect(Query{Tokens: tokensOf(1)}, onGPU("a", 4), held)
}
