package level_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// begetDoubt makes a load that does not find a chunk, after which all keys are asked
// for.
func (r *rig) begetDoubt(i int) {
	r.t.Helper()
	if err := r.get(i, 9); err == nil {
		r.t.Fatalf("chunk %d is there", i)
	}
}

// ranked is a level over a cluster that other nodes use, for a model of some ranks.
type ranked struct {
	*rig
	spec   *kv.NamespaceSpec
	digest [32]byte
	names  mooncake.Keyspace
}

func newRanked(t *testing.T, shards int, kind kv.SpecKind) *ranked {
	t.Helper()
	r := &ranked{rig: newRig(t, mooncaketest.NewCluster(0), level.Options{}), spec: spec()}
	r.spec.Model, r.spec.TP, r.spec.Groups[0].Shards, r.spec.Groups[0].Kind = fmt.Sprintf("ranks %d", shards), shards, shards, kind
	if kind == kv.SlidingWindow {
		r.spec.Groups[0].WindowTokens = 64
	}
	r.digest = r.spec.Digest()
	var err error
	if r.names, err = mooncake.NamespaceKeys(r.spec); err != nil {
		t.Fatal(err)
	}
	r.Open(r.spec, false)
	return r
}

// key is that of a shard of chunk i.
func (r *ranked) key(i, shard int) string {
	hash := hashOf(i)
	return kv.PoolKey(r.names.Prefixes[0][shard], hash[:r.spec.HashBytes])
}

func (r *ranked) set(i int) {
	for shard := range r.spec.Groups[0].Shards {
		r.cluster.Set(r.key(i, shard), bytes.Repeat([]byte{1}, shardBytes))
	}
}

// asks asks for the first n chunks and returns how many keys that took.
func (r *ranked) asks(n int) int {
	r.t.Helper()
	var keys atomic.Int64
	r.engine.SetFault(func(op string, of []string) mooncaketest.Fault {
		if op == "exist" && strings.Contains(of[0], "@group:") { // not the canary
			keys.Add(int64(len(of)))
		}
		return mooncaketest.Fault{}
	})
	chunks := make([]store.ChunkKey, n)
	for i := range chunks {
		chunks[i].Hash = hashOf(i)
	}
	if err := r.Ask(context.Background(), r.digest, chunks); err != nil {
		r.t.Fatal(err)
	}
	r.engine.SetFault(nil)
	return int(keys.Load())
}

// hit is how many chunks from the first on are known to be there.
func (r *ranked) hit(n int) int {
	glance := r.Glance(r.digest)
	for i := range n {
		hash := hashOf(i)
		if glance.Exists(0, &hash) != kv.Present {
			return i
		}
	}
	return n
}

// TestSparseQuestions: of chains that are whole the answers are right to the chunk,
// wherever they end, for a part of the keys.
func TestSparseQuestions(t *testing.T) {
	const n = 600
	for shards, part := range map[int]float64{1: 0.32, 2: 0.6, 8: 0.22} {
		t.Run(fmt.Sprintf("ranks=%d", shards), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRanked(t, shards, kv.FullAttention)
				there := 0
				for _, end := range []int{0, 1, 2, 3, 15, 16, 17, 299, 300, 597, 598, 599, 600} {
					for ; there < end; there++ {
						r.set(there)
					}
					time.Sleep(10 * time.Second) // what is known is old
					keys := r.asks(n)
					if got := r.hit(n); got != end {
						t.Errorf("a hit of %d, want %d", got, end)
					}
					if share := float64(keys) / float64(n*shards); share > part {
						t.Errorf("%d of %d keys were asked for", keys, n*shards)
					}
					hash := hashOf(end)
					if e := r.Glance(r.digest).Exists(0, &hash); end < n && e != kv.Absent {
						t.Errorf("the first behind %d is %s", end, e)
					}
				}
				if s := r.Stats(); s.Doubts != 0 {
					t.Errorf("%d doubts", s.Doubts)
				}
			})
		})
	}
}

// TestEachKeyIsAskedFor: question by question, all keys get their lease renewed, those
// of chains that are asked for in turn with others, and of questions of several calls.
func TestEachKeyIsAskedFor(t *testing.T) {
	for name, c := range map[string]struct{ shards, n, other int }{"1 rank": {1, 300, 0}, "8 ranks": {8, 300, 0}, "two chains": {1, 300, 260}, "more calls": {1, 9000, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRanked(t, c.shards, kv.FullAttention)
				for i := range c.n {
					r.set(i)
				}
				r.cluster.GiveLeases()
				for range max(c.shards, 4) {
					time.Sleep(10 * time.Second)
					r.asks(c.n)
					if c.other > 0 {
						r.asks(c.other)
					}
				}
				for i := c.other; i < c.n; i++ {
					for shard := range c.shards {
						if !r.cluster.Leased(r.key(i, shard)) {
							t.Fatalf("shard %d of chunk %d was never asked for", shard, i)
						}
					}
				}
			})
		})
	}
}

// TestConcludedIsNotWritten: what was concluded is offered to a lookup, but is not there
// to one who would drop a copy unwritten.
func TestConcludedIsNotWritten(t *testing.T) {
	for _, shards := range []int{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			const n = 300
			r := newRanked(t, shards, kv.FullAttention)
			for i := range n {
				r.set(i)
			}
			r.asks(n)
			sure := 0
			for i := range n {
				key := disk.Key{Namespace: r.digest, Hash: hashOf(i)}
				if _, offered := r.Offers(&key); !offered {
					t.Fatalf("chunk %d is not offered", i)
				}
				if _, there := r.Look(&key); there {
					sure++
				}
			}
			if sure == 0 || sure > n/3 || r.hit(n) != n {
				t.Errorf("%d of %d count as written, a hit of %d", sure, n, r.hit(n))
			}
		})
	}
}

// TestEndBeingPut: where a chain ends some ranks may have put their shards and others
// not yet: that is no hit, whichever shard a question is about, and mostly no doubt.
func TestEndBeingPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, shards, whole = 600, 8, 401
		r := newRanked(t, shards, kv.FullAttention)
		for i := range whole {
			r.set(i)
		}
		for i := whole; i < whole+8; i++ {
			for shard := range shards / 2 {
				r.cluster.Set(r.key(i, shard), bytes.Repeat([]byte{1}, shardBytes))
			}
		}
		exact := 0
		for range 2 * shards {
			before := r.Stats().Doubts
			r.asks(n)
			if got := r.hit(n); got != whole {
				t.Errorf("a hit of %d, want %d", got, whole)
			}
			if r.Stats().Doubts == before {
				exact++
			}
			time.Sleep(2 * time.Minute)
		}
		if exact == 0 {
			t.Error("there was always a doubt")
		}
	})
}

// TestDoubts: holes and parts that a sparse question sees are answered exactly, and so
// is all for a while after it. With many, as a cluster has that evicts, it sees one;
// what it does not see a load does, once.
func TestDoubts(t *testing.T) {
	for name, c := range map[string]struct{ shards, holes int }{"many, 1 rank": {1, 30}, "many, 8 ranks": {8, 30}, "one, 1 rank": {1, 1}, "one, 8 ranks": {8, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 2))
				wrong := 0
				for range 10 {
					if struckChain(t, rng, c.shards, c.holes) {
						wrong++
					}
				}
				if c.holes > 1 && wrong > 1 || c.holes == 1 && wrong == 0 {
					t.Errorf("%d of 10 chains with %d holes were promised beyond the first", wrong, c.holes)
				}
			})
		})
	}
}

// struckChain has the master evict some objects of a chain, and tells whether a
// question did not see it.
func struckChain(t *testing.T, rng *rand.Rand, shards, holes int) (wrong bool) {
	const n = 300
	r := newRanked(t, shards, kv.FullAttention)
	for i := range n {
		r.set(i)
	}
	first := n
	for range holes {
		i := rng.IntN(n - 1)
		first = min(first, i)
		if _, err := r.engine.Remove(context.Background(), []string{r.key(i, rng.IntN(shards))}); err != nil {
			t.Fatal(err)
		}
	}
	r.asks(n)
	got, doubts := r.hit(n), r.Stats().Doubts
	if got < first || doubts > 0 && got != first {
		t.Errorf("%d doubts, and a hit of %d, want %d", doubts, got, first)
	}
	if got > first {
		wrong = true
		var into [][]byte
		for shard := range shards {
			into = append(into, r.memory[shard*shardBytes:][:shardBytes])
		}
		var o outcome
		r.Fetch(disk.Key{Namespace: r.digest, Hash: hashOf(first)}, into, o.got)
		called()
		if len(o.errs) != 1 || o.errs[0] == nil {
			t.Fatalf("a chunk that is not there was got: %v", o.errs)
		}
	} else if doubts == 0 {
		return false // it looks like the chain's end
	}
	time.Sleep(10 * time.Second)
	if keys, got := r.asks(n), r.hit(n); got != first || keys < n*shards {
		t.Errorf("after that a hit of %d, want %d, for %d keys", got, first, keys)
	}
	return wrong
}

// TestDoubtsPass: after a while questions are sparse again.
func TestDoubtsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		r := newRanked(t, 1, kv.FullAttention)
		for i := range n {
			if i != 100 {
				r.set(i)
			}
		}
		if r.asks(n); r.hit(n) != 100 || r.Stats().Doubts != 1 {
			t.Errorf("a hit of %d, %d doubts", r.hit(n), r.Stats().Doubts)
		}
		r.set(100)
		time.Sleep(30 * time.Second)
		if keys := r.asks(n); keys != n || r.hit(n) != n {
			t.Errorf("%d keys, a hit of %d", keys, r.hit(n))
		}
		time.Sleep(40 * time.Second)
		if keys := r.asks(n); keys > n/3 || r.hit(n) != n {
			t.Errorf("%d keys, a hit of %d", keys, r.hit(n))
		}
	})
}

// TestWindowsAreAskedForOneByOne: chunks of a sliding window are not concluded from
// others.
func TestWindowsAreAskedForOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		r := newRanked(t, 1, kv.SlidingWindow)
		for i := range n {
			if i%3 == 0 {
				r.set(i)
			}
		}
		r.asks(n)
		glance := r.Glance(r.digest)
		for i := range n {
			hash := hashOf(i)
			if got := glance.Exists(0, &hash); (got == kv.Present) != (i%3 == 0) || got == kv.Unknown {
				t.Fatalf("chunk %d is %s", i, got)
			}
		}
		if s := r.Stats(); s.Doubts != 0 {
			t.Errorf("%d doubts", s.Doubts)
		}
	})
}
