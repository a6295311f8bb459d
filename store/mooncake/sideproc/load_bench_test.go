package sideproc_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

// BenchmarkLevel is what a node's store asks of a cluster, through the level and the
// side process, over one master and one storage node on loopback TCP: the chunks of
// a long prompt, and whether those of a longer one are there.
func BenchmarkLevel(b *testing.B) {
	python := mooncaketest.Python(b)
	master := mooncaketest.StartMaster(b, python)
	mooncaketest.StartPeer(b, python, master, 3<<30)
	for _, c := range []struct {
		chunks, shards int
		shardBytes     uint64
	}{{60, 1, 8 << 20}, {60, 8, 1 << 20}, {2048, 1, 64 << 10}} {
		b.Run(fmt.Sprintf("load/chunks=%d/shards=%d/bytes=%d", c.chunks, c.shards, c.shardBytes), func(b *testing.B) {
			l, memory, digest := newLevel(b, python, master, c.chunks, c.shards, c.shardBytes)
			chunks := chunksOf(digest, c.chunks)
			piece := uint64(c.shards) * c.shardBytes
			into := func(i int) (shards [][]byte) {
				for shard := range c.shards {
					shards = append(shards, memory[uint64(i)*piece+uint64(shard)*c.shardBytes:][:c.shardBytes])
				}
				return shards
			}
			b.SetBytes(int64(uint64(c.chunks) * piece))
			done := make(chan error, c.chunks)
			for b.Loop() {
				for i, key := range chunks {
					if !l.Fetch(key, into(i), func(_ *disk.Chunk, err error) { done <- err }) {
						b.Fatal("refused")
					}
				}
				for range chunks {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
	for _, shards := range []int{1, 8} {
		b.Run(fmt.Sprintf("ask/chunks=8192/shards=%d", shards), func(b *testing.B) {
			const asked = 8192
			l, _, digest := newLevel(b, python, master, asked, shards, 64)
			var chunks []store.ChunkKey
			for _, key := range chunksOf(digest, asked) {
				chunks = append(chunks, store.ChunkKey{Hash: key.Hash})
			}
			for b.Loop() {
				if err := l.Ask(b.Context(), digest, chunks); err != nil {
					b.Fatal(err)
				}
			}
			if s := l.Stats(); s.Found != s.Asked {
				b.Fatalf("%d of %d chunks were found", s.Found, s.Asked)
			}
		})
	}
}

func chunksOf(digest [32]byte, n int) []disk.Key {
	keys := make([]disk.Key, n)
	for i := range keys {
		keys[i].Namespace = digest
		binary.LittleEndian.PutUint64(keys[i].Hash[:], uint64(i+1)*0x9E3779B97F4A7C15)
	}
	return keys
}

// newLevel runs a level whose cluster has chunks, with memory for all of them.
func newLevel(b *testing.B, python string, master *mooncaketest.Master, chunks, shards int, shardBytes uint64) (*level.Level, []byte, [32]byte) {
	b.Helper()
	memory := newMemory(b, uint64(chunks*shards)*shardBytes)
	e := run(b, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory})
	await(b, e, isReady)
	spec := &kv.NamespaceSpec{
		Model: fmt.Sprint("bench", rand.Uint64()), HashBytes: 32, HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1, TP: shards, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: int(shardBytes), Shards: shards}},
	}
	digest := spec.Digest()
	keys, err := mooncake.NamespaceKeys(spec)
	if err != nil {
		b.Fatal(err)
	}
	var objects []mooncake.Object
	for i, chunk := range chunksOf(digest, chunks) {
		for shard := range shards {
			at := mooncake.Range{Offset: uint64(i*shards+shard) * shardBytes, Bytes: shardBytes}
			objects = append(objects, mooncake.Object{Key: kv.PoolKey(keys.Prefixes[0][shard], chunk.Hash[:32]), Range: at})
		}
	}
	for len(objects) > 0 {
		n := min(len(objects), mooncake.MaxTransfer, max(1, int((64<<20)/shardBytes)))
		answers, err := e.Put(b.Context(), mooncake.Replication{}, objects[:n])
		if err != nil || answers[0] != 0 {
			b.Fatalf("put: %v, %v", answers[0], err)
		}
		objects = objects[n:]
	}
	client := mooncake.NewClient(mooncake.ClientOptions{Engine: e, Memory: memory.Bytes(), Log: quiet(b)})
	l := level.New(level.Options{Client: client, Memory: memory.Bytes(), Log: quiet(b)})
	l.Open(spec, false)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	b.Cleanup(func() {
		stop()
		<-ended
		client.Close()
	})
	for l.Problem() != "" {
		time.Sleep(time.Millisecond)
	}
	b.Cleanup(func() { // room for the next
		if _, err := e.RemovePrefix(context.Background(), keys.Scope); err != nil {
			b.Error(err)
		}
	})
	return l, memory.Bytes(), digest
}
