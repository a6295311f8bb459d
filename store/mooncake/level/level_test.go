package level_test

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	shardBytes  = 1000
	canaryBytes = 64
)

func spec() *kv.NamespaceSpec {
	return &kv.NamespaceSpec{
		Model: "m", HashBytes: 16, HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1, TP: 2, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: shardBytes, Shards: 2}},
	}
}

// rig is a level over a cluster in this process.
type rig struct {
	*level.Level
	t       *testing.T
	cluster *mooncaketest.Cluster
	engine  *mooncaketest.Engine
	memory  []byte
	digest  [32]byte
}

func newRig(t *testing.T, cluster *mooncaketest.Cluster, opts level.Options) *rig {
	t.Helper()
	r := &rig{t: t, cluster: cluster, memory: make([]byte, 64*shardBytes+canaryBytes), digest: spec().Digest()}
	r.engine = cluster.NewEngine(r.memory)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	opts.Client = mooncake.NewClient(mooncake.ClientOptions{Engine: r.engine, Memory: r.memory, Canary: mooncake.Range{Offset: 64 * shardBytes, Bytes: canaryBytes}, Log: log})
	opts.Memory, opts.Log = r.memory, log
	r.Level = level.New(opts)
	r.Open(spec(), false)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if s := r.Stats(); s.QueuedBytes != 0 || s.FetchingBytes != 0 {
			t.Errorf("%d bytes are queued and %d being got at the end", s.QueuedBytes, s.FetchingBytes)
		}
	})
	synctest.Wait()
	return r
}

func hashOf(i int) kv.Hash { return kv.Hash{byte(i), byte(i >> 8), 3, 4, 5, 6, 7, 8, 9} }

func (r *rig) key(i int) disk.Key { return disk.Key{Namespace: r.digest, Hash: hashOf(i)} }

// pieces are the memory of a place for a chunk.
func (r *rig) pieces(place int) [][]byte {
	at := 2 * place * shardBytes
	return [][]byte{r.memory[at:][:shardBytes], r.memory[at+shardBytes:][:shardBytes]}
}

func bytesOf(i, shard int) []byte {
	return bytes.Repeat([]byte{byte(i), byte(shard + 1)}, shardBytes/2)
}

// outcome collects what done functions are told.
type outcome struct {
	mu    sync.Mutex
	errs  []error
	chunk *disk.Chunk
}

func (o *outcome) put(err error) { o.got(nil, err) }

func (o *outcome) got(c *disk.Chunk, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs, o.chunk = append(o.errs, err), c
}

// chunk writes a chunk to a place.
func (r *rig) chunk(i, place int) disk.Chunk {
	c := disk.Chunk{Key: r.key(i), ShardBytes: shardBytes}
	for shard, piece := range r.pieces(place) {
		copy(piece, bytesOf(i, shard))
		c.Checksums = append(c.Checksums, crc32.Checksum(piece, crc32.MakeTable(crc32.Castagnoli)))
	}
	return c
}

// put hands over a chunk and returns what became of it, and whether it was taken.
func (r *rig) put(i, place int) (error, bool) { //nolint:revive // the error is what is asked for
	r.t.Helper()
	var o outcome
	if !r.Demote(r.chunk(i, place), r.pieces(place), o.put) {
		return nil, false
	}
	synctest.Wait()
	if len(o.errs) != 1 {
		r.t.Fatalf("chunk %d was answered %d times", i, len(o.errs))
	}
	return o.errs[0], true
}

// called waits until what was fetched is got: a call waits a moment for more.
func called() {
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

// get fetches a chunk and compares its bytes.
func (r *rig) get(i, place int) error {
	r.t.Helper()
	pieces := r.pieces(place)
	clear(pieces[0])
	clear(pieces[1])
	var o outcome
	if !r.Fetch(r.key(i), pieces, o.got) {
		r.t.Fatalf("chunk %d was refused", i)
	}
	called()
	if len(o.errs) != 1 {
		r.t.Fatalf("chunk %d was answered %d times", i, len(o.errs))
	}
	if o.errs[0] != nil {
		return o.errs[0]
	}
	for shard, piece := range pieces {
		if !bytes.Equal(piece, bytesOf(i, shard)) || o.chunk.Checksums[shard] != crc32.Checksum(piece, crc32.MakeTable(crc32.Castagnoli)) {
			r.t.Errorf("chunk %d, shard %d: other bytes", i, shard)
		}
	}
	return nil
}

func (r *rig) exists(i int) kv.Existence {
	hash := hashOf(i)
	return r.Glance(r.digest).Exists(0, &hash)
}

func (r *rig) ask(ctx context.Context, chunks ...int) error {
	var keys []store.ChunkKey
	for _, i := range chunks {
		keys = append(keys, store.ChunkKey{Hash: hashOf(i)})
	}
	return r.Ask(ctx, r.digest, keys)
}

func (r *rig) expect(i int, want kv.Existence) {
	r.t.Helper()
	if got := r.exists(i); got != want {
		r.t.Errorf("chunk %d is %s, want %s", i, got, want)
	}
}

// TestWhatIsKnown: own puts and answers are known for as long as the lease can be
// relied on, absence briefly, and nothing else.
func TestWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		a, b := newRig(t, cluster, level.Options{}), newRig(t, cluster, level.Options{})
		a.expect(1, kv.Unknown)
		if err, taken := a.put(1, 0); err != nil || !taken {
			t.Fatal(err, taken)
		}
		a.expect(1, kv.Present)
		if asked := a.engine.Calls("exist"); asked != 0 {
			t.Errorf("%d questions about what was put", asked)
		}
		b.expect(1, kv.Unknown)
		if err := b.ask(t.Context(), 1, 2); err != nil {
			t.Fatal(err)
		}
		b.expect(1, kv.Present)
		b.expect(2, kv.Absent)
		time.Sleep(time.Second)
		b.expect(1, kv.Present)
		b.expect(2, kv.Unknown)
		time.Sleep(4 * time.Second) // half of a lease
		b.expect(1, kv.Unknown)
		a.expect(1, kv.Unknown)
	})
}

// TestPartOfAChunk: a chunk counts when all of its shards are there.
func TestPartOfAChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newRig(t, cluster, level.Options{})
		keys, err := mooncake.NamespaceKeys(spec())
		if err != nil {
			t.Fatal(err)
		}
		hash := hashOf(1)
		cluster.Set(kv.PoolKey(keys.Prefixes[0][0], hash[:16]), bytesOf(1, 0))
		if err := r.ask(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		r.expect(1, kv.Absent)
		if err := r.get(1, 0); err == nil {
			t.Error("a chunk without one of its shards was got")
		}
		cluster.Set(kv.PoolKey(keys.Prefixes[0][1], hash[:16]), bytesOf(1, 1))
		time.Sleep(time.Second)
		if err := r.ask(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		r.expect(1, kv.Present)
		if err := r.get(1, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestFailedGet: a chunk that does not come is a miss for a while, whatever was
// known.
func TestFailedGet(t *testing.T) {
	for _, code := range []mooncake.Code{mooncake.CodeNotFound, mooncake.CodeLeaseExpired, mooncake.CodeTransferFailed} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
			if err, _ := r.put(1, 0); err != nil {
				t.Fatal(err)
			}
			r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
				if op == "get" {
					return mooncaketest.Fault{Code: code, Torn: true}
				}
				return mooncaketest.Fault{}
			})
			if err := r.get(1, 1); err == nil {
				t.Error("it was got")
			}
			key := r.key(1)
			r.MissOnce(&key)
			r.expect(1, kv.Absent)
			if _, there := r.Offers(&key); there {
				t.Error("it is offered again at once")
			}
			r.engine.SetFault(nil)
			time.Sleep(time.Second)
			if err := r.ask(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			r.expect(1, kv.Present)
			if err := r.get(1, 1); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSilentMaster: while the master does not answer nothing is there, nothing is
// taken and nobody waits; it heals without anybody asking.
func TestSilentMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		r.engine.SetFault(func(string, []string) mooncaketest.Fault { return mooncaketest.Fault{Code: mooncake.CodeRPCFailed} })
		if err := r.ask(t.Context(), 2); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("ask: %v", err)
		}
		r.expect(1, kv.Absent)
		r.expect(2, kv.Absent)
		if _, taken := r.put(3, 1); taken || r.Stats().Refused[level.RefusedDown] != 1 || r.CanFetch() || r.CanDemote(1) {
			t.Errorf("a chunk was taken: %+v", r.Stats().Refused)
		}
		before := r.engine.Calls("exist")
		for range 100 {
			if err := r.ask(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
		}
		if asked := r.engine.Calls("exist") - before; asked > 0 {
			t.Errorf("%d questions to a master that does not answer", asked)
		}
		time.Sleep(time.Minute)
		r.engine.SetFault(nil)
		time.Sleep(6 * time.Second) // the longest pause
		synctest.Wait()
		if err, taken := r.put(3, 1); err != nil || !taken {
			t.Errorf("after it: %v, %v", err, taken)
		}
	})
}

// TestImpatientLookups: lookups that wait for a moment say nothing of the master,
// and what it answers later is known then.
func TestImpatientLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		r.engine.SetFault(func(string, []string) mooncaketest.Fault {
			return mooncaketest.Fault{Wait: func(context.Context) { time.Sleep(500 * time.Millisecond) }}
		})
		time.Sleep(5 * time.Second) // what was put is old
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := r.ask(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ask: %v", err)
		}
		time.Sleep(time.Second)
		r.expect(1, kv.Present)
	})
}

// TestLongQuestion: what takes several calls is known call by call, and calls behind
// one that failed are not made.
func TestLongQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // what was put is old
		const perCall = mooncake.MaxKeys / 2
		names, err := mooncake.NamespaceKeys(spec())
		if err != nil {
			t.Fatal(err)
		}
		hash := hashOf(perCall)
		second := kv.PoolKey(names.Prefixes[0][0], hash[:16])
		release := make(chan struct{})
		r.engine.SetFault(func(_ string, keys []string) mooncaketest.Fault {
			if len(keys) > 0 && keys[0] == second {
				return mooncaketest.Fault{Wait: func(context.Context) { <-release }}
			}
			return mooncaketest.Fault{}
		})
		chunks := make([]int, 5*perCall+1)
		for i := range chunks {
			chunks[i] = i
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		r.begetDoubt(60)
		if err := r.ask(ctx, chunks...); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ask: %v", err)
		}
		r.expect(1, kv.Present)
		r.expect(perCall-1, kv.Absent)
		r.expect(perCall, kv.Unknown)
		r.expect(2*perCall-1, kv.Unknown)
		r.expect(5*perCall, kv.Absent)
		close(release)
		synctest.Wait()
		r.expect(2*perCall-1, kv.Absent)
		if s := r.Stats(); s.Questions != 6 || s.Doubts != 1 || s.Asked != uint64(len(chunks)) || s.Found != 1 {
			t.Errorf("%+v", s)
		}
		r.engine.SetFault(func(string, []string) mooncaketest.Fault { return mooncaketest.Fault{Code: mooncake.CodeRPCFailed} })
		before := r.engine.Calls("exist")
		if err := r.ask(t.Context(), chunks...); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("ask: %v", err)
		}
		if asked := r.engine.Calls("exist") - before; asked > 3 { // two at a time, and whether the master answers
			t.Errorf("%d questions to a master that does not answer", asked)
		}
	})
}

// TestHangingTransfer: what is handed over is answered when nobody touches its
// memory any more, and not before; others go on meanwhile.
func TestHangingTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		for i := range 2 {
			if err, _ := r.put(i, i); err != nil {
				t.Fatal(err)
			}
		}
		release := make(chan struct{})
		first := true
		var mu sync.Mutex
		r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if op != "get" || !first {
				return mooncaketest.Fault{}
			}
			first = false
			return mooncaketest.Fault{Wait: func(context.Context) { <-release }}
		})
		var stuck outcome
		if !r.Fetch(r.key(0), r.pieces(4), stuck.got) {
			t.Fatal("refused")
		}
		called()
		if err := r.get(1, 5); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if len(stuck.errs) != 0 {
			t.Error("a get that hangs was answered")
		}
		close(release)
		synctest.Wait()
		if len(stuck.errs) != 1 || stuck.errs[0] != nil {
			t.Errorf("it was answered %v", stuck.errs)
		}
	})
}

// TestBoundedQueue: the newest are refused, and counted.
func TestBoundedQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{QueueBytes: 6 * shardBytes})
		release := make(chan struct{})
		r.engine.SetFault(func(op string, _ []string) mooncaketest.Fault {
			if op == "put" {
				return mooncaketest.Fault{Wait: func(context.Context) { <-release }}
			}
			return mooncaketest.Fault{}
		})
		var o outcome
		taken := 0
		for i := range 5 {
			if r.Demote(r.chunk(i, i), r.pieces(i), o.put) {
				taken++
			}
		}
		if taken != 3 || r.Stats().Refused[level.RefusedQueue] != 2 || r.CanDemote(shardBytes) {
			t.Errorf("%d were taken, refused %v", taken, r.Stats().Refused)
		}
		close(release)
		synctest.Wait()
		if len(o.errs) != 3 || r.Stats().PutChunks != 3 || !r.CanDemote(shardBytes) {
			t.Errorf("answers %v", o.errs)
		}
	})
}

// TestFull: a cluster without room is left alone for a moment.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(3*shardBytes), level.Options{})
		if err, taken := r.put(1, 0); err != nil || !taken {
			t.Fatal(err, taken)
		}
		if err, taken := r.put(2, 1); err == nil || !taken || r.Stats().NoRoom != 1 {
			t.Errorf("%v, %v, %+v", err, taken, r.Stats())
		}
		r.expect(2, kv.Unknown)
		if _, taken := r.put(3, 2); taken || r.Stats().Refused[level.RefusedFull] != 1 {
			t.Errorf("taken %v, refused %v", taken, r.Stats().Refused)
		}
		time.Sleep(2 * time.Second)
		if _, taken := r.put(3, 2); !taken {
			t.Error("refused for ever")
		}
	})
}

// TestChangedBytes: bytes that are not those of the checksum go nowhere, and the
// store is told.
func TestChangedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{})
		c := disk.Chunk{Key: r.key(1), ShardBytes: shardBytes, Checksums: []uint32{1, 2}}
		var o outcome
		if !r.Demote(c, r.pieces(0), o.put) {
			t.Fatal("refused")
		}
		synctest.Wait()
		if len(o.errs) != 1 || !errors.Is(o.errs[0], disk.ErrSource) || objectsIn(r.cluster) != 0 {
			t.Errorf("%v, %v", o.errs, r.cluster.Keys())
		}
	})
}

// TestResets: after a reset nothing of before is there, and it is removed from the
// cluster only if that was asked for.
func TestResets(t *testing.T) {
	for name, everywhere := range map[string]bool{"this node's": false, "the cluster's": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, mooncaketest.NewCluster(0), level.Options{ResetCluster: everywhere})
				if err, _ := r.put(1, 0); err != nil {
					t.Fatal(err)
				}
				r.Leave(r.digest)
				r.expect(1, kv.Absent)
				if _, taken := r.put(2, 1); taken {
					t.Error("a chunk was taken in the midst of a reset")
				}
				if err := r.Reset(t.Context(), r.digest); err != nil {
					t.Fatal(err)
				}
				if err := r.ask(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				r.expect(1, kv.Absent)
				if left := objectsIn(r.cluster); left != 2 && !everywhere || left != 0 && everywhere {
					t.Errorf("%d objects are left", left)
				}
				time.Sleep(15 * time.Second) // more than a lease: what was read then is gone, too
				synctest.Wait()
				if _, taken := r.put(2, 1); taken != everywhere {
					t.Errorf("after it, a chunk was taken: %v", taken)
				}
				// A lookupd that begins anew knows that there was a reset.
				again := newRig(t, r.cluster, level.Options{ResetCluster: everywhere})
				fresh := spec()
				fresh.Model = "another"
				again.Open(fresh, true)
				again.digest = fresh.Digest()
				if _, taken := again.put(1, 0); taken != everywhere {
					t.Errorf("of a model that was reset before, a chunk was taken: %v", taken)
				}
			})
		})
	}
}
