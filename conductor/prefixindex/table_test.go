package prefixindex

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
)

func testBudget(most int64) *budget { return &budget{bytes: &atomic.Int64{}, max: most} }

// inTable are the links that a table has for a key.
func inTable(t *table, k key) (links []link) {
	p := t.probe(k)
	for l := p.next(); l != 0; l = p.next() {
		links = append(links, l)
	}
	return links
}

// checkCells looks whether cells are where they are to be found, and how many there are.
func checkCells(t *testing.T, of *table, want map[key][]link) {
	t.Helper()
	total := 0
	for k, links := range want {
		total += len(links)
		got := inTable(of, k)
		slices.Sort(got)
		if slices.Sort(links); !slices.Equal(got, links) {
			t.Fatalf("key %x: %v, not %v", k, got, links)
		}
	}
	used := 0
	for _, s := range of.segments() {
		used += int(s.used)
	}
	if used != total {
		t.Fatalf("%d cells, not %d", used, total)
	}
}

// Keys of all kinds come and go: what is in the table is found, and nothing else.
func TestTable(t *testing.T) {
	for name, draw := range map[string]func(*rand.Rand) key{
		"spread":  func(r *rand.Rand) key { return key(r.Uint32()) },
		"few":     func(r *rand.Rand) key { return key(r.Uint32N(30)) * 0x08888888 },
		"at ends": func(r *rand.Rand) key { return key(r.Uint32N(3))<<30 - key(r.Uint32N(400)) },
		"near":    func(r *rand.Rand) key { return key(r.Uint32N(1 << 12)) },
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 1))
			var x table
			x.init()
			b := testBudget(0)
			b.spend(tableBytes)
			in, refused := map[key][]link{}, 0
			for n := range link(40_000) {
				k := draw(random)
				if links := in[k]; len(links) > 0 && random.IntN(3) == 0 {
					at := random.IntN(len(links))
					x.remove(k, links[at])
					in[k] = slices.Delete(links, at, at+1)
					continue
				}
				if !x.insert(k, n+1, b) {
					refused++
					continue
				}
				in[k] = append(in[k], n+1)
			}
			checkCells(t, &x, in)
			if name == "spread" && refused > 0 {
				t.Errorf("%d were refused", refused)
			}
			if bytes := int64(x.bytes()); b.own != bytes {
				t.Errorf("%d bytes, %d counted", bytes, b.own)
			}
			for k, links := range in {
				for _, l := range links {
					x.remove(k, l)
				}
			}
			checkCells(t, &x, nil)
		})
	}
}

// Without memory for more the cells that there are get used, and what is in them is found.
func TestTableWithoutMemory(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, most := range []int64{0, 1, 5, 20, 100} {
		var x table
		x.init()
		b := testBudget(1 + most*unitBytes)
		in, refused := map[key][]link{}, 0
		for n := range link(100_000) {
			if k := key(random.Uint32()); x.insert(k, n+1, b) {
				in[k] = append(in[k], n+1)
			} else {
				refused++
			}
		}
		checkCells(t, &x, in)
		used := 0
		for _, s := range x.segments() {
			used += unitCells * int(s.count)
		}
		if b.bytes.Load() > b.max || refused == 0 || 100_000-refused < used*3/4 {
			t.Errorf("%d bytes of %d, %d of %d cells in use", b.bytes.Load(), b.max, 100_000-refused, used)
		}
	}
}

// However many cells there are, one takes no more than 19 bytes for its eight, and mostly two
// thirds more than them.
func TestTableIsDense(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var x table
	x.init()
	b := testBudget(0)
	b.spend(tableBytes)
	for n := range link(300_000) {
		x.insert(key(random.Uint32()), n+1, b)
		if each := float64(b.own) / float64(n+1); n > 5000 && each > 19 {
			t.Fatalf("%d cells take %v bytes each", n, each)
		}
	}
}

// Records are taken one behind the other, and given back in any order.
func TestRecords(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var r records
	b := testBudget(10 * recordsBytes)
	var taken []link
	most := 10 * pageRecords
	for range 50_000 {
		if random.IntN(2*most) > len(taken) {
			l := r.take(b)
			if (l == 0) != (len(taken) == most) || l != 0 && *r.holders(l) != 0 {
				t.Fatalf("record %d, %d are taken", l, len(taken))
			}
			if l != 0 {
				*r.holders(l) = 1
				taken = append(taken, l)
			}
			continue
		}
		if len(taken) == 0 {
			continue
		}
		at := random.IntN(len(taken))
		r.release(taken[at])
		taken = slices.Delete(taken, at, at+1)
	}
	if err := r.check(); err != nil || r.used != len(taken) {
		t.Fatal(err, r.used, len(taken))
	}
	for _, l := range taken {
		r.release(l)
	}
	runs, last := 0, link(0)
	for range most {
		l := r.take(b)
		if l != last+1 {
			runs++
		}
		last = l
	}
	if runs > 11 { // the page that was being filled is two
		t.Errorf("%d runs of 10 pages", runs)
	}
	if r.take(b) != 0 || b.own != b.max {
		t.Error("there are more records than memory")
	}
}
