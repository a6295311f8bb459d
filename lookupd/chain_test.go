package lookupd

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/missratio"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// heapMemory is a store's memory.
type heapMemory []byte

func (h heapMemory) Bytes() []byte                { return h }
func (h heapMemory) Words() []atomic.Uint64       { return shm.Words(h) }
func (h heapMemory) Prepare(uint64, uint64) error { return nil }

// realCatalog is an embedded store that notes what is leased.
type realCatalog struct {
	*embedded.Master
	leases map[store.Lease][]store.ChunkKey
	mute   bool // chains are not followed
}

func (c *realCatalog) View(ns store.NamespaceID) View {
	if c.mute {
		return muteView{c.Master.View(ns)}
	}
	return c.Master.View(ns)
}

func (c *realCatalog) Grant(ns store.NamespaceID, holder store.Lease, chunks []store.ChunkKey, ttl time.Duration) {
	c.leases[holder] = slices.Clone(chunks)
	c.Master.Grant(ns, holder, chunks, ttl)
}

// muteView knows of no chain.
type muteView struct{ *embedded.View }

func (muteView) Ancestors(int, []byte, int, int, int, int) (found, present int, stray bool) {
	return 0, 0, false
}

// chainRig is the handler of one engine over a real store.
type chainRig struct {
	t       testing.TB
	catalog *realCatalog
	session embedded.Session
	ns      store.Namespace
	spec    *kv.NamespaceSpec
	h       *handler
	now     time.Time
	asked   []string // tags
}

func newChainRig(t testing.TB, spec *kv.NamespaceSpec, sampler Sampler) *chainRig {
	t.Helper()
	return newChainRigOf(t, spec, sampler, 32<<20)
}

// newChainRigOf is newChainRig with a store of so many bytes.
func newChainRigOf(t testing.TB, spec *kv.NamespaceSpec, sampler Sampler, storeBytes uint64) *chainRig {
	t.Helper()
	r := &chainRig{t: t, spec: spec, now: time.Unix(1000, 0), session: embedded.Session{Client: 1, Number: 1}}
	layout, err := embedded.NewLayout([16]byte{1}, storeBytes)
	if err != nil {
		t.Fatal(err)
	}
	master, err := embedded.Create(make(heapMemory, layout.FileBytes), layout, embedded.Options{
		Alive: func(uint32, uint64) bool { return true }, Now: func() time.Time { return r.now }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = master.PrepareNext(); err != nil {
			t.Fatal(err)
		}
	}
	r.catalog = &realCatalog{Master: master, leases: map[store.Lease][]store.ChunkKey{}}
	if err := master.OpenSession(r.session, 1, 1, embedded.Declaration{}); err != nil {
		t.Fatal(err)
	}
	if r.ns, err = master.OpenNamespace(spec); err != nil {
		t.Fatal(err)
	}
	e := &engine{name: "e", spec: *spec, ns: r.ns, rules: rulesOf(t, spec)}
	e.inquiries = newInquiries(r.catalog, e.rules, r.ns.ID, &connector.Engine{})
	t.Cleanup(e.inquiries.close)
	r.h = newHandler(Config{Catalog: r.catalog, LeaseTTL: time.Minute, Sampler: sampler, Log: slog.New(slog.DiscardHandler)}, e)
	return r
}

// put stores chunks, shards of them.
func (r *chainRig) put(shards int, ttl time.Duration, items ...store.PutItem) {
	r.t.Helper()
	for shard := range shards {
		for i := range items {
			items[i].Shard = uint32(shard)
		}
		grants, err := r.catalog.PutStartAs(r.session, r.ns, &embedded.PutOptions{TTL: ttl}, items)
		if err != nil {
			r.t.Fatal(err)
		}
		var commits []store.PutCommit
		for _, g := range grants {
			if g.Status == store.PutGranted {
				commits = append(commits, store.PutCommit{Ticket: g.Ticket})
			}
		}
		if _, err := r.catalog.PutEnd(r.session, commits); err != nil {
			r.t.Fatal(err)
		}
	}
}

// answer is all that an engine is told, and all that is done for it.
type answer struct {
	hit, status []byte
	lease       []store.ChunkKey
}

// ask asks as a shim that was told of that stride.
func (r *chainRig) ask(stride, tokens int, hashes []byte, id string) answer {
	r.t.Helper()
	delete(r.catalog.leases, store.Lease{Engine: "e", Request: id})
	r.asked = r.asked[:0]
	asking := wire.Asking{Tokens: tokens, Hashes: hashes, HashLen: r.spec.HashBytes, ID: id, Stride: stride}
	for {
		frames := asking.Frames(7)
		r.asked = append(r.asked, string(frames[0]))
		reply := r.h.handle(frames)
		again, err := asking.Heard(reply)
		if err != nil || len(r.asked) > 3 {
			r.t.Fatalf("%v asked: %x, %v", r.asked, reply, err)
		}
		if again {
			continue
		}
		hit, status := bytes.Clone(reply[0]), bytes.Clone(reply[1])
		if status[8]&wire.FlagShow != 0 {
			status[8] &^= wire.FlagShow
			r.h.handle(wire.EncodeSeen(r.spec.HashBytes, hashes))
		}
		return answer{hit, status, r.catalog.leases[store.Lease{Engine: "e", Request: id}]}
	}
}

func (r *chainRig) wantAsked(want ...string) {
	r.t.Helper()
	if !slices.Equal(r.asked, want) {
		r.t.Errorf("asked %v, want %v", r.asked, want)
	}
}

// chainOf is the hashes of a request, each of all before it.
func chainOf(length int, tokens ...int) []byte {
	var blob []byte
	var last [32]byte
	for _, token := range tokens {
		last = sha256.Sum256(binary.LittleEndian.AppendUint64(last[:], uint64(token)))
		blob = append(blob, last[:length]...)
	}
	return blob
}

// branch is n tokens, the first of which are those of a trunk.
func branch(n, shared, seed int) []int {
	tokens := make([]int, n)
	for i := range tokens {
		if i >= shared {
			tokens[i] = seed
		}
	}
	return tokens
}

// chunksOf is what a store of a request names, group by group.
func chunksOf(spec *kv.NamespaceSpec, hashes []byte) (groups [][]store.PutItem) {
	blob, err := kv.NewHashBlob(hashes, spec.HashBytes)
	if err != nil {
		panic(err)
	}
	for g, group := range spec.Groups {
		var items []store.PutItem
		scale := group.BlockTokens / spec.HashBlockTokens
		for i := scale - 1; i < blob.Len(); i += scale {
			item := store.PutItem{Group: uint32(g), Hash: blob.At(i), Depth: uint32(len(items))}
			if len(items) > 0 {
				item.Parent = items[len(items)-1].Hash
			}
			items = append(items, item)
		}
		groups = append(groups, items)
	}
	return groups
}

func chainSpecs() map[string]kv.NamespaceSpec {
	of := func(hashBytes, schedulerTokens int, groups ...kv.GroupSpec) kv.NamespaceSpec {
		s := spec("m")
		s.HashBytes, s.SchedulerBlockTokens, s.Groups = hashBytes, schedulerTokens, groups
		return s
	}
	full := kv.GroupSpec{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 4096, Shards: 2}
	window := kv.GroupSpec{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 100, ShardBytes: 4096, Shards: 1}
	state := kv.GroupSpec{Kind: kv.MambaAlign, BlockTokens: 64, ShardBytes: 4096, Shards: 1}
	big := kv.GroupSpec{Kind: kv.FullAttention, BlockTokens: 64, ShardBytes: 4096, Shards: 1}
	other := full
	other.Identity = "other"
	fine := of(32, 64, full, state)
	fine.HitAlignmentTokens = 16
	eagle := of(32, 16, full, window)
	eagle.UseEagle = true
	return map[string]kv.NamespaceSpec{
		"full": of(32, 16, full), "short hashes": of(16, 16, full), "two that are equal": of(32, 16, full, full), "two": of(32, 16, other, full),
		"window": of(32, 16, full, window), "eagle": eagle, "state": of(32, 64, state, full), "fine": fine, "large chunks": of(32, 64, big, state),
		"window first": of(32, 64, window, big),
	}
}

// TestChainsAreAnsweredAsLists: whatever is stored, in whatever order, what
// failed, what has expired: a question that names few hashes gets the answer, the
// lease and the sample that one with all of them gets. Two stores have the same
// history, and each question is asked of one in full, of the other in part.
func TestChainsAreAnsweredAsLists(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for name, spec := range chainSpecs() {
		t.Run(name, func(t *testing.T) {
			stride := strideOf(rulesOf(t, &spec))
			if known := name != "window first"; known != (stride > 0) {
				t.Fatalf("a stride of %d", stride)
			}
			tags := map[string]int{}
			for seed := range seeds {
				compareChains(t, &spec, stride, seed, tags)
			}
			if stride > 0 && (tags["answered"] < 10*int(seeds)) {
				t.Errorf("asked %v: the test shows little", tags)
			}
		})
	}
}

func compareChains(t *testing.T, spec *kv.NamespaceSpec, stride int, seed uint64, tags map[string]int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 11))
	seen := [2]*everything{{}, {}}
	rigs := [2]*chainRig{newChainRig(t, spec, seen[0]), newChainRig(t, spec, seen[1])}
	both := func(do func(r *chainRig)) { do(rigs[0]); do(rigs[1]) }
	var requests [][]byte
	for range 4 {
		requests = append(requests, chainOf(spec.HashBytes, branch(270+rng.IntN(500), rng.IntN(500), 1+rng.IntN(3))...))
	}
	change := func() {
		groups := chunksOf(spec, requests[rng.IntN(len(requests))])
		g := rng.IntN(len(groups))
		if len(groups[g]) == 0 {
			return
		}
		from := rng.IntN(len(groups[g]))
		items := slices.Clone(groups[g][from:min(len(groups[g]), from+1+rng.IntN(200))])
		switch what := rng.IntN(12); {
		case what < 7 && what%2 == 0 || what == 1: // mostly from the first on, in all groups, as a request's are
			both(func(r *chainRig) {
				for g, all := range groups {
					r.put(spec.Groups[g].Shards, 0, slices.Clone(all[:len(all)*(from+1)/len(groups[min(g, len(groups)-1)])%(len(all)+1)])...)
				}
			})
		case what < 7:
			if what == 3 {
				rng.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
			}
			ttl := time.Duration(rng.IntN(3)) * time.Minute
			shards := 1 + rng.IntN(spec.Groups[g].Shards)
			both(func(r *chainRig) { r.put(shards, ttl, slices.Clone(items)...) })
		case what == 7:
			both(func(r *chainRig) { r.now = r.now.Add(40 * time.Second); r.catalog.Tick() })
		default:
			failed := []store.FailedChunk{{Group: items[0].Group, Hash: items[0].Hash, Corrupt: what%2 == 0}}
			both(func(r *chainRig) {
				if err := r.catalog.ReportFailed(r.session, r.ns, failed); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	for i := range 60 {
		for range rng.IntN(4) {
			change()
		}
		hashes := requests[rng.IntN(len(requests))]
		if rng.IntN(4) == 0 {
			hashes = chainOf(spec.HashBytes, branch(300+rng.IntN(300), rng.IntN(300), 9)...)
		}
		tokens := len(hashes)/spec.HashBytes*spec.HashBlockTokens + rng.IntN(2)
		if rng.IntN(5) == 0 {
			tokens = rng.IntN(tokens)
		}
		id := fmt.Sprint("r", i)
		want, got := rigs[0].ask(0, tokens, hashes, id), rigs[1].ask(stride, tokens, hashes, id)
		if !bytes.Equal(want.hit, got.hit) || !bytes.Equal(want.status, got.status) || !slices.Equal(want.lease, got.lease) {
			t.Fatalf("seed %d, question %d (%v) of %d tokens: %x %x and %d leased; in full %x %x and %d leased",
				seed, i, rigs[1].asked, tokens, got.hit, got.status, len(got.lease), want.hit, want.status, len(want.lease))
		}
		for _, tag := range rigs[1].asked {
			tags[tag]++
		}
		if last := rigs[1].asked[len(rigs[1].asked)-1]; last == wire.TagLookup3 && len(want.hit) > 4 {
			tags["answered"]++
		}
		if rng.IntN(3) == 0 {
			both(func(r *chainRig) { r.catalog.ReleaseLeases("e", []string{id}) })
		}
	}
	if !slices.Equal(seen[0].chunks, seen[1].chunks) {
		t.Fatalf("seed %d: the sampler was shown %d chunks, and in full %d", seed, len(seen[1].chunks), len(seen[0].chunks))
	}
	full, part := rigs[0].h.counters, rigs[1].h.counters
	if a, b := full.snapshot(), part.snapshot(); a.Lookups != b.Lookups || a.Misses != b.Misses || a.HitTokens != b.HitTokens || a.QueryTokens != b.QueryTokens {
		t.Fatalf("seed %d: counted %+v, and in full %+v", seed, b, a)
	}
	if a, b := rigs[0].catalog.Stats(), rigs[1].catalog.Stats(); a.Missed != b.Missed {
		t.Fatalf("seed %d: misses %v, and in full %v", seed, b.Missed, a.Missed)
	}
}

// everything keeps the keys of all that a sampler is shown.
type everything struct{ chunks []uint64 }

func (s *everything) Lookup(scope missratio.Scope, hashes []byte, stride int) {
	for at := 0; at+8 <= len(hashes); at += stride {
		s.chunks = append(s.chunks, binary.LittleEndian.Uint64(hashes[at:])^scope.Salt)
	}
	s.chunks = append(s.chunks, 0) // one lookup's end
}

// TestAChainIsToldOnceWhatFailed: a chunk whose load has failed is a miss for the
// question that is answered, and not for the one before that was not.
func TestAChainIsToldOnceWhatFailed(t *testing.T) {
	s := spec("m")
	s.HashBytes, s.UseEagle, s.SchedulerBlockTokens = 32, true, 48
	s.Groups = append(s.Groups, kv.GroupSpec{Kind: kv.SlidingWindow, BlockTokens: 48, WindowTokens: 48, ShardBytes: 4096, Shards: 1})
	hashes := chainOf(32, branch(300, 0, 1)...)
	var answers [2][2]answer
	for way, stride := range []int{0, chainStride} {
		r := newChainRig(t, &s, nil)
		for _, items := range chunksOf(&s, hashes) {
			r.put(1, 0, items[:len(items)*2/3]...)
		}
		// The window looks for a chunk behind the full group's last, and behind the next
		// hash that is named.
		failed := []store.FailedChunk{{Hash: chunksOf(&s, hashes)[0][chainStride-1].Hash}}
		if err := r.catalog.ReportFailed(r.session, r.ns, failed); err != nil {
			t.Fatal(err)
		}
		for i := range answers[way] {
			answers[way][i] = r.ask(stride, 5000, hashes, "r")
		}
		if way == 1 {
			r.wantAsked(wire.TagLookup3, wire.TagLookup3)
		}
	}
	for i, want := range answers[0] {
		if got := answers[1][i]; !bytes.Equal(got.hit, want.hit) || !slices.Equal(got.lease, want.lease) {
			t.Errorf("answer %d is %x, in full %x", i, got.hit, want.hit)
		}
	}
	if bytes.Equal(answers[0][0].hit, answers[0][1].hit) {
		t.Error("the failure makes no difference: the test shows nothing")
	}
}

// TestChainQuestions: how often a question is asked, and with what.
func TestChainQuestions(t *testing.T) {
	s := spec("m")
	s.HashBytes = 32
	hashes := chainOf(32, branch(1000, 0, 1)...)
	ask := func(stored int, adjust func(*chainRig)) *chainRig {
		t.Helper()
		r := newChainRig(t, &s, nil)
		r.put(1, 0, chunksOf(&s, hashes)[0][:stored]...)
		if adjust != nil {
			adjust(r)
		}
		got := r.ask(strideOf(r.h.rules), 16_001, hashes, "r")
		if hit, _, err := wire.ParseHit(got.hit); err != nil || hit != 16*stored {
			t.Errorf("%d chunks stored: a hit of %d, %v", stored, hit, err)
		}
		return r
	}
	few := wire.TagLookup3
	ask(1000, nil).wantAsked(few)
	ask(0, nil).wantAsked(few)
	ask(16, nil).wantAsked(few, few) // what comes behind the first few is not known
	ask(500, nil).wantAsked(few, few)
	ask(512, nil).wantAsked(few, few)
	r := ask(700, func(r *chainRig) { r.catalog.mute = true })
	r.wantAsked(few, few, wire.TagLookup2)
	if got := r.h.counters.snapshot(); got.More != 2 || got.Lookups != 1 {
		t.Errorf("counted %+v", got)
	}
}

// TestChainsOfNoGroup: a client that names few hashes though it was told not to is
// asked for the others.
func TestChainsOfNoGroup(t *testing.T) {
	s := chainSpecs()["window first"]
	r := newChainRig(t, &s, nil)
	hashes := chainOf(32, branch(500, 0, 1)...)
	for _, items := range chunksOf(&s, hashes) {
		r.put(1, 0, items...)
	}
	got := r.ask(chainStride, 8001, hashes, "r")
	if hit, _, err := wire.ParseHit(got.hit); err != nil || hit != 8000 || r.h.counters.snapshot().Errors[ReasonPanic] != 0 {
		t.Errorf("a hit of %d, %v, %+v", hit, err, r.h.counters.snapshot())
	}
	r.wantAsked(wire.TagLookup3, wire.TagLookup3, wire.TagLookup2)
}

// TestChainsThatMustBeAsked: what a cluster has to be asked for is asked for with
// all of the hashes.
func TestChainsThatMustBeAsked(t *testing.T) {
	s := spec("m")
	r := newFarRig(t, &s, 400, connector.Engine{})
	r.store(t, 400, 0)
	asking := wire.Asking{Tokens: 6401, Hashes: r.blob, HashLen: 16, ID: "r", Stride: strideOf(r.h.rules)}
	again, err := asking.Heard(r.h.handle(asking.Frames(1)))
	if err != nil || !again || len(r.questions()) != 0 {
		t.Fatalf("%v, %v, %d questions to the cluster", again, err, len(r.questions()))
	}
	frames := asking.Frames(2)
	if string(frames[0]) != wire.TagLookup2 {
		t.Errorf("asked with a %s", frames[0])
	}
	if hit, _, err := wire.ParseHit(r.h.handle(frames)[0]); err != nil || hit != 6400 {
		t.Errorf("a hit of %d, %v", hit, err)
	}
}

// TestChainsAllocateNothing: a question that names few hashes allocates no more
// than one with all of them, which is the store's view.
func TestChainsAllocateNothing(t *testing.T) {
	s := spec("m")
	s.HashBytes = 32
	r := newChainRig(t, &s, nil)
	hashes := chainOf(32, branch(1024, 0, 1)...)
	r.put(1, 0, chunksOf(&s, hashes)[0][:1000]...)
	for name, c := range map[string]struct {
		hashes []byte
		more   bool
	}{"present": {hashes[:1000*32], false}, "missing": {chainOf(32, branch(1024, 0, 2)...), false}, "more": {hashes, true}} {
		asking := wire.Asking{Tokens: len(c.hashes)/2 + 1, Hashes: c.hashes, HashLen: 32, Stride: chainStride}
		frames := asking.Frames(1)
		if again, err := asking.Heard(r.h.answer(frames)); again != c.more || err != nil {
			t.Errorf("%s: again %v, %v", name, again, err)
		}
		full := wire.EncodeLookup2(asking.Tokens, 32, c.hashes, "r", 1)
		want := testing.AllocsPerRun(100, func() { r.h.answer(full) })
		if got := testing.AllocsPerRun(100, func() { r.h.answer(frames) }); got != want {
			t.Errorf("%s: a lookup allocates %v times, in full %v times", name, got, want)
		}
	}
}

// TestChainsWhileTheStoreChanges: a hit is no longer than what was there at some
// moment and no shorter than what was there all the while.
func TestChainsWhileTheStoreChanges(t *testing.T) {
	s := spec("m")
	s.HashBytes = 32
	r := newChainRig(t, &s, nil)
	const lasting, most = 300, 400
	hashes := chainOf(32, branch(500, 0, 1)...)
	chunks := chunksOf(&s, hashes)[0]
	r.put(1, 0, chunks[:lasting]...)
	var done atomic.Bool
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		rng := rand.New(rand.NewPCG(1, 1))
		for !done.Load() {
			at := lasting + rng.IntN(most-lasting)
			if rng.IntN(3) == 0 {
				r.put(1, 0, slices.Clone(chunks[lasting:at])...)
			} else {
				_ = r.catalog.ReportFailed(r.session, r.ns, []store.FailedChunk{{Hash: chunks[at].Hash, Corrupt: true}})
			}
		}
	}()
	lengths := map[int]bool{}
	for i := range 3000 {
		got := r.ask(chainStride, 8001, hashes, "r")
		hit, _, err := wire.ParseHit(got.hit)
		if err != nil || hit < 16*lasting || hit > 16*most {
			t.Errorf("question %d: a hit of %d tokens (%v), of %d to %d", i, hit, err, 16*lasting, 16*most)
			break
		}
		lengths[hit] = true
	}
	done.Store(true)
	<-writer
	if len(lengths) < 5 {
		t.Errorf("hits of %v only: the test shows nothing", lengths)
	}
}
