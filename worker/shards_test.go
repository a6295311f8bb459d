package worker_test

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

// A model of two layers with four KV heads. A chunk has two shards of two heads
// each, whatever the number of ranks.
const (
	layers      = 2
	modelHeads  = 4
	blockTokens = 4
	cellBytes   = 16 // of a token and head
	sharedTP    = 2
	shardBytes  = layers * blockTokens * modelHeads / sharedTP * cellBytes
)

// shared is a rank of an engine that shares shards with engines of other sizes.
type shared struct {
	*engine
	tp, rank   int
	tokenMajor bool
}

func (r *rig) shared(tp, rank int, tokenMajor bool) *shared {
	e := &shared{tp: tp, rank: rank, tokenMajor: tokenMajor}
	e.engine = r.engineWith(func(reg *connector.Register) {
		reg.Namespace = *storetest.Spec(fmt.Sprintf("token-major %v", tokenMajor), sharedTP)
		reg.Namespace.Groups[0].ShardBytes = shardBytes
		reg.HeldShards = sharedTP / tp
		reg.ShardByGroup = []int{rank * reg.HeldShards}
		reg.Segments = e.segments(reg.HeldShards)
	})
	return e
}

func (e *shared) heads() int { return modelHeads / e.tp }

// segments cuts each layer's block into the rank's shards.
func (e *shared) segments(held int) (out []connector.KVSegment) {
	mine := e.heads() / held * cellBytes // of a token
	for shard := range held {
		for layer := range layers {
			pieces, piece := 1, mine*blockTokens
			if e.tokenMajor {
				pieces, piece = blockTokens, mine
			}
			for k := range pieces {
				at := e.at(layer, 0, shard*e.heads()/held, k)
				out = append(out, connector.KVSegment{Shard: shard, Offset: uint64(at), BlockStride: uint64(e.pageBytes()), Bytes: uint64(piece)})
			}
		}
	}
	return out
}

func (e *shared) pageBytes() int { return e.heads() * blockTokens * cellBytes }

// at is where a token's bytes of a head of the rank's own begin.
func (e *shared) at(layer, block, head, token int) int {
	cell := head*blockTokens + token
	if e.tokenMajor {
		cell = token*e.heads() + head
	}
	return (layer*numBlocks+block)*e.pageBytes() + cell*cellBytes
}

// cell is what the model computes, whichever rank does.
func cell(prefix string, layer, chunk, head, token int) []byte {
	h := fnv.New128a()
	fmt.Fprint(h, prefix, layer, chunk, head, token)
	return h.Sum(nil)
}

// compute fills blocks with a prefix's chunks.
func (e *shared) compute(prefix string, blocks []uint32) {
	e.visit(prefix, blocks, func(at int, want []byte) { copy(e.kv[at:], want) })
}

// right tells whether a block holds a chunk of the prefix.
func (e *shared) right(prefix string, chunk int, block uint32) bool {
	right := true
	padded := make([]uint32, chunk+1)
	padded[chunk] = block
	e.visit(prefix, padded, func(at int, want []byte) { right = right && bytes.Equal(e.kv[at:at+cellBytes], want) })
	return right
}

func (e *shared) visit(prefix string, blocks []uint32, do func(at int, want []byte)) {
	for chunk, block := range blocks {
		for i := 0; block != 0 && i < layers*e.heads()*blockTokens; i++ {
			layer, head, token := i/(e.heads()*blockTokens), i/blockTokens%e.heads(), i%blockTokens
			do(e.at(layer, int(block), head, token), cell(prefix, layer, chunk, e.rank*e.heads()+head, token))
		}
	}
}

// Engines of different tensor-parallel sizes load what the others have stored,
// byte for byte.
func TestShardsAreSharedBetweenEngineSizes(t *testing.T) {
	for _, tokenMajor := range []bool{false, true} {
		t.Run(fmt.Sprintf("token-major %v", tokenMajor), func(t *testing.T) {
			r := newRig(t, nil)
			one, two := []*shared{r.shared(1, 0, tokenMajor)}, []*shared{r.shared(2, 0, tokenMajor), r.shared(2, 1, tokenMajor)}
			for _, way := range []struct {
				name     string
				from, to []*shared
			}{{"one to two", one, two}, {"two to one", two, one}} {
				for _, e := range way.from {
					e.compute(way.name, ids(10, 5))
					job := e.storeJob(way.name, ids(10, 5))
					result := e.do(job)
					want(t, result, job.Job, connector.StatusOK, "")
					if result.Chunks != 5*sharedTP/e.tp {
						t.Errorf("%s: %d shards stored", way.name, result.Chunks)
					}
				}
				for _, e := range way.to {
					job := e.loadJob(way.name, ids(30, 5))
					want(t, e.do(job), job.Job, connector.StatusOK, "")
					for chunk, block := range ids(30, 5) {
						if !e.right(way.name, chunk, block) {
							t.Errorf("%s: chunk %d is not what was computed", way.name, chunk)
						}
					}
				}
			}
			r.settled()
		})
	}
}

// A chunk of which a rank has not stored its shards is a hit for nobody, and each
// of its blocks is reported once.
func TestChunkWithoutAShardIsNoHit(t *testing.T) {
	r := newRig(t, nil)
	one, first, second := r.shared(1, 0, false), r.shared(2, 0, false), r.shared(2, 1, false)
	for rank, n := range map[*shared]int{first: 4, second: 2} {
		rank.compute("p", ids(10, n))
		job := rank.storeJob("p", ids(10, n))
		want(t, rank.do(job), job.Job, connector.StatusOK, "")
	}
	load := one.loadJob("p", ids(30, 4))
	result := one.do(load)
	want(t, result, load.Job, connector.StatusFailed, "absent", 32, 33)
	if result.Chunks != 2*sharedTP || !one.right("p", 0, 30) || !one.right("p", 1, 31) {
		t.Errorf("%d shards are loaded", result.Chunks)
	}
	if reported := r.store.Reported(); len(reported) != 2 {
		t.Errorf("%d chunks are misses once, want two: %v", len(reported), reported)
	}
	r.settled()
}

// One shard of a block that does not verify makes the whole block one that failed.
func TestCorruptShardFailsItsBlock(t *testing.T) {
	r := newRig(t, nil)
	one := r.shared(1, 0, true)
	one.compute("p", ids(10, 3))
	job := one.storeJob("p", ids(10, 3))
	want(t, one.do(job), job.Job, connector.StatusOK, "")
	if !r.store.Flip(0, hashAt("p", 1), 1, 0) { // the second shard of the second chunk
		t.Fatal("nothing was flipped")
	}
	load := one.loadJob("p", ids(30, 3))
	want(t, one.do(load), load.Job, connector.StatusFailed, "corrupt", 31)
	if !one.right("p", 0, 30) || one.right("p", 1, 31) || !one.right("p", 2, 32) {
		t.Error("the blocks do not hold what they must")
	}
	r.settled()
}

// Every rank of an engine whose stages and contexts are parallel keeps shards of
// its own; a chunk is a hit when the last of them is there.
func TestChunkOfManyRanks(t *testing.T) {
	const ranks = 6
	r := newRig(t, nil)
	var engines []*engine
	for rank := range ranks {
		e := r.engineWith(func(reg *connector.Register) {
			reg.Namespace = *storetest.Spec("many", ranks)
			reg.ShardByGroup = []int{rank}
		})
		for i, block := range ids(1, 3) {
			e.fill(block, byte(16*rank+i))
		}
		engines = append(engines, e)
	}
	for rank, e := range engines {
		load := e.loadJob("p", ids(20, 3))
		want(t, e.do(load), load.Job, connector.StatusFailed, "absent", 20, 21, 22)
		job := e.storeJob("p", ids(1, 3))
		want(t, e.do(job), job.Job, connector.StatusOK, "")
		if rank < ranks-1 {
			continue
		}
		for rank, e := range engines {
			load := e.loadJob("p", ids(40, 3))
			want(t, e.do(load), load.Job, connector.StatusOK, "")
			for i, block := range ids(40, 3) {
				if got := e.block(block); !bytes.Equal(got, bytes.Repeat([]byte{byte(16*rank + i)}, blockBytes)) {
					t.Errorf("rank %d: block %d holds %x...", rank, block, got[:4])
				}
			}
		}
	}
	r.settled()
}

// Registrations whose shards do not fit are refused.
func TestHeldShardsAreChecked(t *testing.T) {
	r := newRig(t, nil)
	for name, spoil := range map[string]func(*connector.Register){
		"more than there are": func(reg *connector.Register) { reg.HeldShards = 3 },
		"beyond the last":     func(reg *connector.Register) { reg.ShardByGroup[0] = 1 },
		"a shard of nobody":   func(reg *connector.Register) { reg.Segments[0].Shard = 2 },
		"a shard too short":   func(reg *connector.Register) { reg.Segments[0].Shard = 1 },
		"negative":            func(reg *connector.Register) { reg.HeldShards = -1 },
		"no end":              func(reg *connector.Register) { reg.HeldShards = kv.MaxShards + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRegistration(t)
			g.reg.Namespace = *storetest.Spec("m", 2)
			g.reg.Namespace.Groups[0].ShardBytes = blockBytes / 2
			g.reg.HeldShards = 2
			g.reg.Segments[1].Shard = 1
			spoil(g.reg)
			p := r.dial()
			p.send(hello(connector.RoleWorkerShim))
			expect[*connector.Welcome](p)
			p.send(g.reg, g.kvFD, g.boardFD)
			if refusal := expect[*connector.Error](p); refusal.Message == "" {
				t.Error("refused without a word")
			}
		})
	}
}
