package lookupd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

// farCatalog is a catalog that has to ask what it has.
type farCatalog struct {
	*fakeCatalog
	delay time.Duration // of a question

	mu    sync.Mutex
	far   map[store.ChunkKey]bool // what is there
	known map[store.ChunkKey]bool
	asked []int // sizes of the questions
	err   error
}

func (c *farCatalog) View(ns store.NamespaceID) View { return &farView{c, c.fakeCatalog.View(ns)} }

type farView struct {
	c *farCatalog
	View
}

func (v *farView) Exists(group int, hash kv.Hash) kv.Existence {
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	switch present, known := v.c.known[store.ChunkKey{Group: uint32(group), Hash: hash}]; {
	case !known:
		return kv.Unknown
	case present:
		return kv.Present
	}
	return kv.Absent
}

func (c *farCatalog) Ask(ctx context.Context, _ store.NamespaceID, chunks []store.ChunkKey) error {
	c.mu.Lock()
	c.asked = append(c.asked, len(chunks))
	err := c.err
	c.mu.Unlock()
	timer := time.NewTimer(c.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range chunks {
		c.known[k] = c.far[k]
	}
	return nil
}

func (c *farCatalog) questions() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

// farRig is the handler of an engine over such a catalog.
type farRig struct {
	*farCatalog
	h    *handler
	blob []byte
}

func newFarRig(t *testing.T, spec *kv.NamespaceSpec, hashes int, of connector.Engine) *farRig {
	t.Helper()
	r := &farRig{
		farCatalog: &farCatalog{fakeCatalog: newFakeCatalog(), far: map[store.ChunkKey]bool{}, known: map[store.ChunkKey]bool{}},
		blob:       prefix(1, hashes),
	}
	rules, err := coordinator.New(coordinator.ConfigOf(spec))
	if err != nil {
		t.Fatal(err)
	}
	ns, err := r.OpenNamespace(spec)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{name: "e", spec: *spec, ns: ns, rules: rules, inquiries: newInquiries(r.farCatalog, rules, ns.ID, &of)}
	t.Cleanup(e.inquiries.close)
	r.h = newHandler(Config{Catalog: r.farCatalog, LeaseTTL: time.Minute, Log: slog.New(slog.DiscardHandler)}, e)
	return r
}

// store puts the chunks of some groups up to a hash into the far store.
func (r *farRig) store(t *testing.T, to int, groups ...uint32) {
	t.Helper()
	hashes, err := kv.NewHashBlob(r.blob, 16)
	if err != nil {
		t.Fatal(err)
	}
	for i := range to {
		for _, g := range groups {
			r.far[store.ChunkKey{Group: g, Hash: hashes.At(i)}] = true
		}
	}
}

// ask returns the hit of a lookup, and whether it is pending.
func (r *farRig) ask(t *testing.T, tokens int, id string) (hit int, pending bool) {
	t.Helper()
	reply := r.h.handle(wire.EncodeLookup2(tokens, 16, r.blob, id, 1))
	hit, _, err := wire.ParseHit(reply[0])
	if err != nil {
		t.Fatal(err)
	}
	_, flags, err := wire.ParseStatus(reply[1])
	if err != nil {
		t.Fatal(err)
	}
	return hit, flags&wire.FlagPending != 0
}

func oneGroup() *kv.NamespaceSpec {
	return &kv.NamespaceSpec{
		Model: "m", HashBytes: 16, HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1, TP: 1, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 4096, Shards: 1}},
	}
}

// TestQuestionsGrow: a miss costs one small question, a hit as many as their growth
// takes, and not one more.
func TestQuestionsGrow(t *testing.T) {
	for _, c := range []struct {
		stored int
		want   []int
	}{
		{0, []int{16}},
		{15, []int{16}},
		{16, []int{16, 512}},
		{500, []int{16, 512}},
		{528, []int{16, 512, 472}},
		{1000, []int{16, 512, 472}},
	} {
		t.Run(fmt.Sprint("stored=", c.stored), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFarRig(t, oneGroup(), 1000, connector.Engine{})
				r.store(t, c.stored, 0)
				if hit, pending := r.ask(t, 16_001, "r"); hit != 16*c.stored || pending {
					t.Errorf("a hit of %d, pending %v", hit, pending)
				}
				if got := r.questions(); !slices.Equal(got, c.want) {
					t.Errorf("questions of %v chunks, want %v", got, c.want)
				}
				if len(r.leases) != min(c.stored, 1) {
					t.Errorf("leases %v", r.leases)
				}
			})
		})
	}
}

// TestEveryGroupIsAsked: of a model with a sliding window, too: the full group's
// chain first, then the window at its end.
func TestEveryGroupIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := oneGroup()
		spec.Groups = append(spec.Groups, kv.GroupSpec{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 64, ShardBytes: 4096, Shards: 1})
		r := newFarRig(t, spec, 200, connector.Engine{})
		r.store(t, 100, 0, 1)
		if hit, pending := r.ask(t, 3201, "r"); hit != 1600 || pending {
			t.Errorf("a hit of %d, pending %v; asked %v", hit, pending, r.questions())
		}
		asked := 0
		for _, n := range r.questions() {
			asked += n
		}
		if asked > 300 {
			t.Errorf("%d chunks were asked for, in %v", asked, r.questions())
		}
	})
}

// TestPendingUntilKnown: an engine that asks again is told at once that the answer
// is pending, and later what it is, without a question of its own.
func TestPendingUntilKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFarRig(t, oneGroup(), 100, connector.Engine{LookupAsync: true})
		r.delay = 100 * time.Millisecond
		r.store(t, 100, 0)
		for range 5 {
			if hit, pending := r.ask(t, 1601, "r"); hit != 0 || !pending {
				t.Fatalf("a hit of %d, pending %v", hit, pending)
			}
		}
		if len(r.leases) != 0 {
			t.Error("a pending answer was leased")
		}
		synctest.Wait()
		time.Sleep(250 * time.Millisecond) // two questions
		synctest.Wait()
		if hit, pending := r.ask(t, 1601, "r"); hit != 1600 || pending {
			t.Errorf("a hit of %d, pending %v", hit, pending)
		}
		if got := r.questions(); !slices.Equal(got, []int{16, 84}) {
			t.Errorf("questions %v", got)
		}
	})
}

// TestInquiryAgain: an inquiry that was not needed in the end says nothing of what
// the request's next lookup, long after it, does not know.
func TestInquiryAgain(t *testing.T) {
	for name, forget := range map[string]bool{"consumed": true, "left": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newFarRig(t, oneGroup(), 10, connector.Engine{LookupAsync: true})
				r.delay = 100 * time.Millisecond
				r.store(t, 10, 0)
				if _, pending := r.ask(t, 161, "r"); !pending {
					t.Fatal("not pending")
				}
				time.Sleep(time.Second)
				if forget {
					if hit, pending := r.ask(t, 161, "r"); hit != 160 || pending {
						t.Errorf("a hit of %d, pending %v", hit, pending)
					}
				}
				time.Sleep(answerKept)
				r.mu.Lock()
				clear(r.known)
				r.mu.Unlock()
				if hit, pending := r.ask(t, 161, "r"); !pending {
					t.Errorf("what is not known any more counts as absent: a hit of %d", hit)
				}
				time.Sleep(time.Second / 2)
				if hit, pending := r.ask(t, 161, "r"); hit != 160 || pending {
					t.Errorf("a hit of %d, pending %v", hit, pending)
				}
				if forget && len(r.h.engine.inquiries.byRequest) != 0 {
					t.Error("an inquiry stays that nobody waits for")
				}
			})
		})
	}
}

// TestEndedSinceItLooked: an inquiry that ends between the lookup and its question
// whether it has, has found out what it has.
func TestEndedSinceItLooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFarRig(t, oneGroup(), 10, connector.Engine{LookupAsync: true})
		r.store(t, 10, 0)
		r.delay = 100 * time.Millisecond
		parsed, err := wire.ParseRequest(wire.EncodeLookup2(161, 16, r.blob, "r", 1))
		if err != nil {
			t.Fatal(err)
		}
		before, err := r.h.find(&parsed)
		if err != nil || before.Asks == nil {
			t.Fatal(before, err)
		}
		if found, err := r.h.inquire(&parsed, before); err != nil || !found.Pending {
			t.Fatal(found, err)
		}
		time.Sleep(time.Second / 2)
		if found, err := r.h.inquire(&parsed, before); err != nil || found.Pending || found.HitTokens != 160 {
			t.Errorf("%+v, %v; want a hit of 160", found, err)
		}
	})
}

// TestSilentFarStore: a lookup that is waited for ends well before its engine stops
// waiting, and one that is not ends being pending.
func TestSilentFarStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFarRig(t, oneGroup(), 100, connector.Engine{LookupTimeoutMS: 50})
		r.delay = time.Hour
		begun := time.Now()
		if hit, pending := r.ask(t, 1601, "r"); hit != 0 || pending {
			t.Errorf("a hit of %d, pending %v", hit, pending)
		}
		if took := time.Since(begun); took != 25*time.Millisecond {
			t.Errorf("it took %s of its clock", took)
		}
		r = newFarRig(t, oneGroup(), 100, connector.Engine{LookupAsync: true})
		r.delay = time.Hour
		if _, pending := r.ask(t, 1601, "r"); !pending {
			t.Error("not pending")
		}
		time.Sleep(inquiryLimit)
		synctest.Wait()
		if hit, pending := r.ask(t, 1601, "r"); hit != 0 || pending {
			t.Errorf("a hit of %d, pending %v", hit, pending)
		}
	})
}

// TestKnownPartIsAHit: what is known counts, when the rest can't be asked.
func TestKnownPartIsAHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFarRig(t, oneGroup(), 100, connector.Engine{})
		r.store(t, 100, 0)
		hashes, _ := kv.NewHashBlob(r.blob, 16)
		for i := range 10 {
			r.known[store.ChunkKey{Hash: hashes.At(i)}] = true
		}
		r.err = errors.New("the store is silent")
		if hit, pending := r.ask(t, 1601, "r"); hit != 160 || pending {
			t.Errorf("a hit of %d, pending %v", hit, pending)
		}
	})
}

// TestForgetfulFarStore: answers that nobody remembers are not asked for without
// end.
func TestForgetfulFarStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFarRig(t, oneGroup(), 100, connector.Engine{})
		r.known = nil // writing to it would panic
		r.far = nil
		forgetful := &forgetfulCatalog{r.farCatalog}
		r.h.catalog = forgetful
		r.h.engine.inquiries.catalog = forgetful
		if hit, pending := r.ask(t, 1601, "r"); hit != 0 || pending || len(r.questions()) > 2 {
			t.Errorf("a hit of %d, pending %v, questions %v", hit, pending, r.questions())
		}
	})
}

type forgetfulCatalog struct{ *farCatalog }

func (c *forgetfulCatalog) Ask(_ context.Context, _ store.NamespaceID, chunks []store.ChunkKey) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, len(chunks))
	return nil
}
