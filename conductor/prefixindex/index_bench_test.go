package prefixindex

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

const benchBlock = 16

// prompts makes events of prompts that have nothing in common, of some blocks each.
func promptEvents(random *rand.Rand, blocks int) *kvevents.BlockStored {
	e := &kvevents.BlockStored{BlockSize: benchBlock, Medium: kvevents.MediumGPU}
	for range blocks {
		e.Hashes = append(e.Hashes, kvevents.Hash(random.Uint64()))
	}
	for range blocks * benchBlock {
		e.TokenIDs = append(e.TokenIDs, random.Uint32N(150_000))
	}
	return e
}

func littleEndian(tokens []uint32) []byte {
	var out []byte
	for _, token := range tokens {
		out = binary.LittleEndian.AppendUint32(out, token)
	}
	return out
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Payloads as they come from the wire, decoded and applied by so many goroutines, each
// with its own engines.
func BenchmarkStore(b *testing.B) {
	const engines, perEvent = 64, 128
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			old := runtime.GOMAXPROCS(threads)
			defer runtime.GOMAXPROCS(old)
			x := New(Options{Seed: 1})
			var next atomic.Int64
			b.SetParallelism(1)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				me := next.Add(1)
				random := rand.New(rand.NewPCG(uint64(me), 2))
				var sources []*Source
				for i := range engines / threads {
					sources = append(sources, x.Open(Origin{Model: "m", Instance: fmt.Sprint(me, "-", i)}))
				}
				d, e := kvevents.NewDecoder(), kvevents.NewEncoder()
				event := promptEvents(random, perEvent)
				payload, err := e.Encode(&kvevents.Batch{Time: 1, Events: []kvevents.Event{event}})
				if err != nil {
					b.Fatal(err)
				}
				for n := 0; pb.Next(); n++ {
					batch, _, err := d.Decode(payload)
					if err != nil {
						b.Fatal(err)
					}
					got := batch.Events[0].(*kvevents.BlockStored)
					// Other blocks than before, without encoding them anew.
					for i := range got.Hashes {
						got.Hashes[i] = kvevents.Hash(random.Uint64())
					}
					got.TokenIDs[0] = random.Uint32()
					sources[n%len(sources)].Apply(batch)
				}
			})
			b.ReportMetric(float64(b.N)*perEvent/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}

// What five million blocks on 64 engines take, and how long removing them all does.
func BenchmarkMemory(b *testing.B) {
	const engines, perEvent = 64, 128
	for _, blocks := range []int{1_000_000, 5_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			for b.Loop() {
				before := heapBytes()
				x := New(Options{Seed: 1})
				var sources []*Source
				for i := range engines {
					sources = append(sources, x.Open(Origin{Model: "m", Instance: fmt.Sprint(i)}))
				}
				random := rand.New(rand.NewPCG(1, 2))
				event := promptEvents(random, perEvent)
				for n := range blocks / perEvent {
					for i := range event.Hashes {
						event.Hashes[i] = kvevents.Hash(random.Uint64())
					}
					event.TokenIDs[0] = random.Uint32()
					sources[n%engines].Apply(&kvevents.Batch{Events: []kvevents.Event{event}})
				}
				b.ReportMetric(float64(heapBytes()-before)/float64(blocks/perEvent*perEvent), "B/block")
				runtime.KeepAlive(x)
			}
		})
	}
}

func BenchmarkQuery(b *testing.B) {
	x := New(Options{Seed: 1})
	random := rand.New(rand.NewPCG(1, 2))
	// Half a million other blocks, as in the figures of the peers.
	filler := x.Open(Origin{Model: "m", Instance: "filler"})
	for range 512 {
		filler.Apply(&kvevents.Batch{Events: []kvevents.Event{promptEvents(random, 1000)}})
	}
	for _, engines := range []int{8, 64} {
		for _, tokens := range []int{8 << 10, 32 << 10, 128 << 10} {
			event := promptEvents(random, tokens/benchBlock)
			for i := range engines {
				x.Open(Origin{Model: "m", Instance: fmt.Sprint(engines, tokens, i)}).Apply(&kvevents.Batch{Events: []kvevents.Event{event}})
			}
			prompt := littleEndian(event.TokenIDs)
			miss := littleEndian(promptEvents(random, tokens/benchBlock).TokenIDs)
			for name, prompt := range map[string][]byte{"hit": prompt, "miss": miss} {
				b.Run(fmt.Sprintf("engines=%d/tokens=%d/%s", engines, tokens, name), func(b *testing.B) {
					b.ReportAllocs()
					var matches []Match
					for b.Loop() {
						matches = x.Query(&Query{Model: "m", BlockTokens: benchBlock, Tokens: prompt}, matches[:0])
					}
					if name == "hit" && (len(matches) != engines || matches[0].In[GPU] != tokens) {
						b.Fatal(matches)
					}
				})
			}
		}
	}
}
