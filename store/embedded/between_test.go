package embedded

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// shortSteps are steps so short that everything is done in many.
func shortSteps(random *rand.Rand, between func()) stepSizes {
	some := func() int { return 2 + random.IntN(6) }
	return stepSizes{
		items: some(), stale: uint32(some()), remove: uint32(some()), evict: some(), quota: some(), order: uint32(some()),
		between: between,
	}
}

// walk sets the steps of this master and those after it. REQUIRES: nobody uses it.
func (w *world) walk(steps stepSizes) { w.steps, w.m.opts.steps = steps, steps }

// jumble does at random what takes many steps, and anything else in between.
type jumble struct {
	w       *world
	random  *rand.Rand
	within  bool // in between two steps
	session Session
	number  uint64
	specs   []string
	done    [10]int // by operation, those in between
}

const (
	jumbleChunks = 60
	jumbleBytes  = 8 << 10
)

// TestBetweenSteps: whatever is done between two steps of a call, nothing breaks,
// and what is served has the right bytes.
func TestBetweenSteps(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 5
	}
	var between int
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			j := &jumble{random: rand.New(rand.NewPCG(seed, 4)), specs: []string{"a", "b"}}
			j.w = newWorld(t, 4<<20)
			j.w.walk(shortSteps(j.random, j.between))
			j.open()
			for range 300 {
				j.do(t)
				j.w.m.validate(t)
			}
			for j.w.tick(time.Hour); j.w.m.Tick(); {
			}
			j.w.m.validate(t)
			for i, n := range j.done {
				if between += n; n == 0 && seed == 0 {
					t.Errorf("operation %d was never done between two steps", i)
				}
			}
		})
	}
	t.Logf("%d operations between two steps", between)
}

func (j *jumble) open() {
	j.number++
	j.session = j.w.open(1, j.number, 100, Declaration{})
}

func (j *jumble) between() {
	if j.within || j.random.IntN(4) > 0 {
		return
	}
	j.within = true
	defer func() { j.within = false }()
	j.do(j.w.tb)
}

// do does one operation. Calls whose session or namespace went in between may fail.
func (j *jumble) do(t testing.TB) {
	w := j.w
	ns := w.namespace(testSpec(j.specs[j.random.IntN(2)], jumbleBytes, 1))
	from, n := j.random.IntN(jumbleChunks), 1+j.random.IntN(20)
	keys := make([]int, n)
	for i := range keys {
		keys[i] = (from + i) % jumbleChunks
	}
	owner, holder, tag := Owner{Namespace: ns.ID}, store.Lease{Engine: "e", Request: fmt.Sprint(j.random.IntN(3))}, fmt.Sprint("t", j.random.IntN(3))
	if j.random.IntN(2) == 0 {
		owner = Owner{Tag: tag}
	}
	op := j.random.IntN(23)
	var kind int
	var may error
	switch {
	case op < 8:
		kind, may = 0, j.put(ns, tag, keys)
	case op < 12:
		may = second(w.m.Inspect(ns.ID, make([]uint32, n), hashesOf(keys...)))
		for _, k := range keys {
			w.checkBytes(j.session, w.namespace(testSpec(j.specs[ns.ID], jumbleBytes, 1)), k, 0)
		}
		kind = 1
	case op < 14:
		w.m.Grant(ns.ID, holder, chunkKeys(keys...), time.Hour)
		kind = 2
	case op == 14:
		w.m.ReleaseEngine("e")
		kind = 3
	case op == 15:
		w.m.ReleaseLeases("e", []string{holder.Request})
		kind = 3
	case op == 16:
		kind, may = 4, w.m.Reset(ns.ID)
	case op == 17:
		scope := Scope{Namespace: &ns.ID, Hashes: hashesOf(keys...), Chain: j.random.IntN(2) == 0}
		if j.random.IntN(3) == 0 {
			scope = Scope{SaltTag: &tag}
		}
		kind, may = 5, second(w.m.Remove(w.tb.Context(), scope))
	case op == 18:
		kind, may = 6, second(w.m.Evict(EvictLimit{Chunks: n}))
	case op == 19:
		kind, may = 7, w.m.SetQuota(owner, uint64(j.random.IntN(40))*jumbleBytes)
	case op == 20:
		kind, may = 8, second(w.m.Pin(ns.ID, chunkKeys(keys...), PinKind(1+j.random.IntN(2)), time.Duration(1+j.random.IntN(60))*time.Second))
		if errors.Is(may, ErrPinBudget) {
			may = nil
		}
	default:
		w.now = w.now.Add(time.Duration(j.random.IntN(30)) * time.Second)
		w.m.Tick()
		kind = 9
	}
	if may != nil && !errors.Is(may, store.ErrStaleNamespace) {
		t.Fatalf("operation %d: %v", kind, may)
	}
	if j.within {
		j.done[kind]++
	}
}

// put stores chunks in one call, one in ten with a wrong predecessor.
func (j *jumble) put(ns store.Namespace, tag string, chunks []int) error {
	items := make([]store.PutItem, len(chunks))
	for i, c := range chunks {
		items[i] = store.PutItem{Hash: testHash(c)}
		switch foreign := testHash(j.random.IntN(jumbleChunks)); {
		case j.random.IntN(20) == 0:
			wrongParent(&items[i], ns.ID, 0, nil)
		case j.random.IntN(20) == 0:
			wrongParent(&items[i], ns.ID, 1-ns.ID, &foreign)
		case c > 0:
			items[i].Parent, items[i].Depth = testHash(c-1), uint32(c)
		}
	}
	grants, err := j.w.m.PutStartAs(j.session, ns, &PutOptions{SaltTag: tag}, items)
	if err != nil {
		return err
	}
	var commits []store.PutCommit
	for i, g := range grants {
		if g.Status == store.PutGranted {
			b := j.w.place(g.Place)
			fillShard(b, chunks[i], 0)
			commits = append(commits, store.PutCommit{Ticket: g.Ticket, Checksum: crc32.Checksum(b, castagnoli)})
		}
	}
	return second(j.w.m.PutEnd(j.session, commits))
}
