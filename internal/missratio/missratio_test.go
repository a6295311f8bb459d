package missratio

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

func newLRU(records int) evict.Policy { return evict.NewLRU(records) }

// chain returns n hashes of 32 bytes, the same for the same seed.
func chain(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var b []byte
	for range 4 * n {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

// begun returns a curve that samples for a store of so many chunks of one byte.
func begun(capacity uint64, opts Options) (*Curve, *Tap) {
	opts.NewPolicy = newLRU
	c, tap := New(opts)
	tap.Lookup(Scope{ChunkBytes: 1}, chain(0, 1), 32)
	c.Drain(capacity)
	return c, tap
}

// TestTotals: a set that fits into half of the memory, asked for again and again.
func TestTotals(t *testing.T) {
	c, tap := begun(1<<16, Options{Records: 1024, Factors: []float64{0.25, 1}})
	const chains, length, rounds = 256, 128, 8
	for range rounds {
		for i := range uint64(chains) {
			tap.Lookup(Scope{ChunkBytes: 1}, chain(i+1, length), 32)
		}
		c.Drain(1 << 16)
	}
	p := c.Points()
	all := float64(chains * length)
	if p[1].Chunks != rounds*all || math.Abs(p[1].Hits-(rounds-1)*all) > 0.05*all {
		t.Errorf("with the memory: %v of %v chunks hit, want %v", p[1].Hits, p[1].Chunks, (rounds-1)*all)
	}
	if p[0].Hits > 0.05*rounds*all || p[0].HitRatio > 0.05 {
		t.Errorf("a quarter holds half of a loop: %+v", p[0])
	}
}

// TestHotKey: a key that every lookup has is sampled or not; either way it is
// counted as what it is.
func TestHotKey(t *testing.T) {
	for hot := range uint64(12) {
		c, tap := begun(1<<16, Options{Records: 8192, Factors: []float64{1}})
		for i := range uint64(6000) {
			tap.Lookup(Scope{ChunkBytes: 1}, append(chain(1_000_000+hot, 1), chain(i+1, 9)...), 32)
			if i%100 == 0 {
				c.Drain(1 << 16)
			}
		}
		c.Drain(1 << 16)
		if p := c.Points()[0]; math.Abs(p.Hits/p.Chunks-0.1) > 0.02 {
			t.Errorf("key %d: hit ratio %.3f, want 0.1", hot, p.Hits/p.Chunks)
		}
	}
}

// TestCountersNeverFall, and ratios are ratios, whatever the capacity does.
func TestCountersNeverFall(t *testing.T) {
	c, tap := begun(1000, Options{Records: 64})
	random := rand.New(rand.NewPCG(3, 4))
	last := c.Points()
	for range 300 {
		for range 10 {
			tap.Lookup(Scope{Salt: random.Uint64N(2), ChunkBytes: 1 + random.Uint64N(3)}, chain(random.Uint64N(50), 1+random.IntN(40)), 32)
		}
		c.Drain(random.Uint64N(100_000))
		points := c.Points()
		for i, p := range points {
			if p.Chunks < last[i].Chunks || p.Hits < last[i].Hits || p.Hits > p.Chunks || p.HitRatio < 0 || p.HitRatio > 1 {
				t.Fatalf("%+v after %+v", p, last[i])
			}
		}
		last = points
	}
}

// TestSaltsAreApart: the same hashes in two namespaces are other chunks.
func TestSaltsAreApart(t *testing.T) {
	c, tap := begun(1000, Options{Factors: []float64{1}})
	for salt := range uint64(2) {
		tap.Lookup(Scope{Salt: salt << 60, ChunkBytes: 1}, chain(1, 50), 32)
	}
	c.Drain(1000)
	if p := c.Points()[0]; p.Hits != 0 || p.Chunks != 100 {
		t.Errorf("%+v, want no hit of 100", p)
	}
}

// TestTapIsBounded: a tap that nobody drains keeps what it has room for.
func TestTapIsBounded(t *testing.T) {
	_, tap := begun(10, Options{})
	long := chain(7, 8192)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2 * maxRequests {
				tap.Lookup(Scope{ChunkBytes: 1}, long, 32)
			}
		})
	}
	all.Wait()
	got := tap.take(batch{})
	if len(got.samples) > maxSamples || len(got.requests) > maxRequests || tap.LeftOut() == 0 {
		t.Errorf("%d samples, %d requests, %d left out", len(got.samples), len(got.requests), tap.LeftOut())
	}
	for _, hashes := range [][]byte{nil, long[:7]} {
		tap.Lookup(Scope{ChunkBytes: 1}, hashes, 32)
	}
	tap.Lookup(Scope{}, long, 32)
	tap.Lookup(Scope{ChunkBytes: 1}, long, 7)
	if got := tap.take(batch{}); len(got.requests) != 0 {
		t.Errorf("%d requests that name no chunk were noted", len(got.requests))
	}
	tap.Lookup(Scope{ChunkBytes: 1}, long[:8], 32)
	if got := tap.take(batch{}); len(got.requests) != 1 || got.requests[0].chunks != 1 {
		t.Errorf("a last hash without the rest of its stride: %+v", got.requests)
	}
}

// The two halves of what a lookup of 8,192 chunks costs beside a store of a
// million: on its path, and behind it.
func BenchmarkTap(b *testing.B) { benchmark(b, false) }

func BenchmarkTapAndDrain(b *testing.B) { benchmark(b, true) }

func benchmark(b *testing.B, drain bool) {
	for _, policy := range []string{evict.NameLRU, evict.Default} {
		b.Run("chunks=8192/others=1000000/policy="+policy, func(b *testing.B) {
			const capacity = 1_000_000
			c, tap := New(Options{NewPolicy: func(records int) evict.Policy {
				p, err := evict.New(policy, records)
				if err != nil {
					b.Fatal(err)
				}
				return p
			}})
			tap.Lookup(Scope{ChunkBytes: 1}, chain(0, 1), 32)
			c.Drain(capacity)
			lookups := make([][]byte, 4) // a lookup has just read its hashes
			for i := range lookups {
				lookups[i] = chain(uint64(i), 8192)
			}
			empty := batch{samples: make([]sample, 0, maxSamples), requests: make([]request, 0, maxRequests)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				tap.Lookup(Scope{ChunkBytes: 1}, lookups[i%len(lookups)], 32)
				if i%64 == 63 {
					if drain {
						c.Drain(capacity)
					} else {
						empty = tap.take(empty)
						empty.reset()
					}
				}
			}
		})
	}
}
