package prefixindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Engines tell, are cleared and go while others ask: what holds for good is always
// found, and what nobody holds never.
func TestConcurrently(t *testing.T) {
	x := New(Options{Seed: 1})
	steady := x.Open(Origin{Model: "m", Instance: "steady"})
	apply(steady, blocks("GPU", 0, 1, 2, 3))
	var engines, askers sync.WaitGroup
	done := make(chan struct{})
	for n := range 3 {
		engines.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 1))
			src := x.Open(Origin{Model: "m", Instance: fmt.Sprint("e", n)})
			for range 1000 {
				first := kvevents.Hash(1 + random.IntN(500))
				switch random.IntN(20) {
				case 19:
					// Its last source ends the other model's space, which then is opened anew.
					other := x.Open(Origin{Model: "other", Instance: "o"})
					apply(other, blocks("GPU", 0, 7))
					if other.Stats().Stored != 1 {
						t.Error("a space has ended with a source in it")
					}
					other.Close()
				case 0:
					apply(src, &kvevents.AllBlocksCleared{})
				case 1:
					src.Close()
					src = x.Open(Origin{Model: "m", Instance: fmt.Sprint("e", n)})
				case 2, 3, 4, 5, 6:
					apply(src, gone("GPU", first, first+1, 2, 3))
				default:
					apply(src, blocks("GPU", 0, 1, 2, 3), blocks("CPU", 3, first+10, first+11))
				}
			}
			src.Close()
		})
	}
	for range 2 {
		askers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				for _, m := range x.Query(&Query{Model: "m", BlockTokens: 4, Tokens: tokensOf(1, 2, 3, 9)}, nil) {
					if m.Through[Disk] > 12 || m.Instance == "steady" && m != onGPU("steady", 12) {
						t.Errorf("%+v", m)
					}
				}
				if found := x.Query(&Query{Model: "m", BlockTokens: 4, Tokens: tokensOf(1, 2, 3), Instance: "steady"}, nil); len(found) != 1 {
					t.Errorf("%+v", found)
				}
			}
		})
	}
	engines.Wait()
	close(done)
	askers.Wait()
	for x.Sweep(10) {
	}
	if len(x.spaces) != 1 {
		t.Errorf("%d spaces", len(x.spaces))
	}
	if err := x.check(); err != nil {
		t.Error(err)
	}
	if used := x.spaces[keyOf("", "m", "", "")].records.used; used != 3 {
		t.Errorf("%d records are left", used)
	}
}

// Events that take the lock several times, of engines that hash differently, while others
// take parts of the same prompt away: what is told of at the end is found.
func TestLongEventsConcurrently(t *testing.T) {
	const long = 3*holdBlocks + 7
	x := New(Options{Seed: 1})
	var all []kvevents.Hash
	for i := range kvevents.Hash(long) {
		all = append(all, 1+i)
	}
	event := func(scheme kvevents.Hash) *kvevents.BlockStored {
		e := blocks("GPU", 0, slices.Clone(all)...)
		for i := range e.Hashes {
			e.Hashes[i] += scheme * long
		}
		return e
	}
	var engines sync.WaitGroup
	var sources [4]*Source
	for n := range sources {
		engines.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 1))
			src := x.Open(Origin{Model: "m", Instance: fmt.Sprint(n)})
			sources[n] = src
			hashes := event(kvevents.Hash(n % 2)).Hashes
			for range 20 {
				apply(src, event(kvevents.Hash(n%2)))
				for _, i := range random.Perm(long)[:random.IntN(long)] {
					apply(src, gone("GPU", hashes[i], hashes[i], hashes[i]))
				}
			}
			apply(src, &kvevents.AllBlocksCleared{}, event(kvevents.Hash(n%2)))
		})
	}
	engines.Wait()
	if err := x.check(); err != nil {
		t.Error(err)
	}
	for n, src := range sources {
		apply(src, event(kvevents.Hash(n%2)))
	}
	if err := x.check(); err != nil {
		t.Error(err)
	}
	found := x.Query(&Query{Model: "m", BlockTokens: 4, Tokens: tokensOf(all...)}, nil)
	for _, m := range found {
		if m.In[GPU] != 4*long {
			t.Errorf("%+v", m)
		}
	}
	if len(found) != 4 {
		t.Errorf("%d engines", len(found))
	}
}
