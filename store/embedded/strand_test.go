package embedded

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// sparseWorld is a world with more memory than the machine has: nothing is
// written to the chunks.
func sparseWorld(t *testing.T, dataBytes uint64) *world {
	layout, err := NewLayout([16]byte{9}, dataBytes)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(-1, 0, int(layout.FileBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Skipf("no address space: %v", err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	w := &world{tb: t, mem: mem, alive: map[uint32]bool{}, now: time.Unix(1000, 0)}
	opts := w.options()
	opts.Log = slog.New(slog.DiscardHandler)
	if w.m, err = Create(w.mem, layout, opts); err != nil {
		t.Fatal(err)
	}
	w.prepare()
	return w
}

// geometry is a model's KV cache as one rank has it: bytes of a token by group.
type geometry struct {
	name       string
	tokenBytes []int
	block      int
}

// geometries are real ones, from 2 KiB to 64 KiB a token and group.
var geometries = []geometry{
	{"small GQA, 24 layers, 2 heads of 64", []int{2 * 24 * 2 * 64 * 2}, 16},
	{"7B GQA, 28 layers, 4 heads of 128", []int{2 * 28 * 4 * 128 * 2}, 16},
	{"8B GQA over two ranks, 32 layers", []int{2 * 32 * 4 * 128 * 2}, 32},
	{"32B GQA over eight ranks, 64 layers", []int{2 * 64 * 1 * 128 * 2}, 128},
	{"70B GQA over eight ranks, 80 layers", []int{2 * 80 * 1 * 128 * 2}, 64},
	{"latent attention, 61 layers of 576", []int{61 * 576}, 64},
	{"sliding and full, 12 and 12 layers of 8 heads of 64", []int{2 * 12 * 8 * 64 * 2, 2 * 12 * 8 * 64 * 2}, 16},
	{"sliding and full, 22 and 4 layers of 4 heads of 128", []int{2 * 22 * 4 * 128 * 2, 2 * 4 * 4 * 128 * 2}, 32},
	{"hybrid: full attention, convolution and recurrent states", []int{2 * 12 * 2 * 128 * 2, 3072, 2048}, 16},
	{"draft model beside it", []int{2 * 1 * 8 * 128 * 2}, 16},
}

func (g *geometry) spec(i int) *kv.NamespaceSpec {
	s := testSpec(fmt.Sprint(i, g.name), 1, 1)
	s.Groups = nil
	for _, bytes := range g.tokenBytes {
		s.Groups = append(s.Groups, kv.GroupSpec{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: bytes * g.block, Shards: 1})
	}
	return s
}

// user stores a model's blocks: of each block a chunk of every group, and now and
// then blocks of the past again, which are touched.
type user struct {
	ns     store.Namespace
	groups int
	block  int
	bytes  uint64 // of a block
}

func (u *user) store(w *world, s Session, rng *rand.Rand, blocks int) {
	var items []store.PutItem
	for range blocks {
		block := u.block
		if again := rng.IntN(4) == 0; again && block > 0 {
			block -= rng.IntN(min(block, 200))
		} else {
			u.block++
		}
		for g := range u.groups {
			items = append(items, store.PutItem{Group: uint32(g), Hash: testHash(int(u.ns.ID)<<32 + block)})
		}
	}
	grants, err := w.m.PutStart(s, u.ns, items)
	if err != nil {
		w.tb.Fatal(err)
	}
	var commits []store.PutCommit
	for _, g := range grants {
		switch g.Status {
		case store.PutGranted:
			commits = append(commits, store.PutCommit{Ticket: g.Ticket})
		case store.PutNoSpace:
			w.tb.Fatal("no space in a store in which nothing is in use")
		}
	}
	if _, err := w.m.PutEnd(s, commits); err != nil {
		w.tb.Fatal(err)
	}
	w.now = w.now.Add(10 * time.Millisecond)
}

// stranded is the part of the memory that holds no shard's bytes.
func (w *world) stranded() float64 {
	held := uint64(0)
	for rec := range w.m.fresh {
		if w.m.live[rec].state.Resident() {
			r := w.m.seg.peekRecord(rec)
			held += uint64(w.m.groupOf(&r).shardBytes)
		}
	}
	st := w.m.Stats()
	return 1 - float64(held)/float64(st.CapacityBytes)
}

var allPairs = flag.Bool("strand.all", false, "all pairs of models, a third of them otherwise")

// TestTwoModelsStrandLittle: two models of any kind that share a store, the
// second coming when the first has filled it, leave at most 5 % of the memory to
// nobody; and who is used more has more of it.
func TestTwoModelsStrandLittle(t *testing.T) {
	const (
		capacity = 2 << 30
		most     = 0.05
	)
	if testing.Short() {
		t.Skip("stores some million chunks")
	}
	every := 3
	if *allPairs {
		every = 1
	}
	var all []float64
	for i := range geometries {
		for j := range geometries[:i] {
			if (i+j)%every != 0 {
				continue
			}
			t.Run(fmt.Sprint(i, " beside ", j), func(t *testing.T) {
				w := sparseWorld(t, capacity)
				s := w.open(1, 1, 100, Declaration{})
				rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				var users []*user
				for n, g := range []geometry{geometries[i], geometries[j]} {
					u := &user{ns: w.namespace(g.spec(n)), groups: len(g.tokenBytes)}
					for _, b := range g.tokenBytes {
						u.bytes += uint64(b * g.block)
					}
					users = append(users, u)
				}
				run := func(u *user, bytes uint64) {
					for blocks := bytes / u.bytes; blocks > 0; {
						batch := min(blocks, 64)
						u.store(w, s, rng, int(batch))
						blocks -= batch
					}
				}
				run(users[0], capacity*5/4)
				run(users[1], capacity*3/2)
				if held := float64(w.m.Stats().CapacityBytes-w.bytesOf(users[0])) / capacity; held < 0.75 {
					t.Errorf("%s after %s: the first, which nobody uses, keeps %.0f %% of the memory", geometries[j].name, geometries[i].name, 100*(1-held))
				}
				for range 40 {
					run(users[rng.IntN(2)], capacity/20)
				}
				w.tick(time.Second)
				got := w.stranded()
				all = append(all, got)
				if got > most {
					t.Errorf("%s beside %s: %.1f %% of the memory hold nothing: %+v", geometries[i].name, geometries[j].name, 100*got, w.m.Stats())
				}
				w.m.validate(t)
			})
		}
	}
	slices.Sort(all)
	t.Logf("%d pairs: median %.2f %%, most %.2f %%", len(all), 100*all[len(all)/2], 100*all[len(all)-1])
}

func (w *world) bytesOf(u *user) uint64 {
	return usageOf(w.m.UsageByNamespace(), Owner{Namespace: u.ns.ID}).Bytes
}
