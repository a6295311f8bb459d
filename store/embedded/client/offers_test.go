package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// offered is a client that follows engine "e" of a daemon with chunks 1 to 3, and
// how many calls it has made since.
type offered struct {
	*Client
	t     *testing.T
	d     *daemon
	ns    store.Namespace
	calls chan struct{}
	stop  func() // following
}

func newOffered(t *testing.T, mute bool) *offered {
	dir := t.TempDir()
	o := &offered{t: t, d: startDaemon(t, dir, nil), calls: make(chan struct{}, 1000)}
	o.d.mute = mute
	t.Cleanup(func() { o.d.kill(); _ = o.d.segment.Close() })
	o.Client = startClient(t, dir)
	waitReady(t, o.Client, true)
	o.ns = open(t, o.Client)
	for chunk := range byte(3) {
		if !end(t, o.Client, o.ns, put(t, o.Client, o.ns, 1+chunk), 1+chunk) {
			t.Fatal("put was void")
		}
	}
	o.stop = o.Follow("e", []int{0}, 1)
	return o
}

var theLease = store.Lease{Engine: "e", Request: "r"}

func itemsOf(chunks ...byte) (items []store.GetItem) {
	for _, c := range chunks {
		items = append(items, store.GetItem{Hash: kv.Hash{c}})
	}
	return items
}

// grant leases chunks to the request, again and again until the client has an offer.
func (o *offered) grant(ttl time.Duration, chunks ...byte) {
	o.t.Helper()
	var keys []store.ChunkKey
	for _, it := range itemsOf(chunks...) {
		keys = append(keys, store.ChunkKey{Hash: it.Hash})
	}
	for deadline := time.Now().Add(30 * time.Second); !o.waits(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			o.t.Fatal("the client got no offer")
		}
		o.d.master.Grant(o.ns.ID, theLease, keys, ttl)
	}
}

// waits tells whether the client has an offer.
func (o *offered) waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.offers.waiting[theLease] != nil
}

// becomes waits for the master's open references to be so many.
func (o *offered) becomes(open int) {
	o.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); o.d.master.Stats().OpenReads != open; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			o.t.Fatalf("%d references are open, want %d", o.d.master.Stats().OpenReads, open)
		}
	}
}

// TestOfferedLoadAsksNothing: no call, the same places, references that count.
func TestOfferedLoadAsksNothing(t *testing.T) {
	o := newOffered(t, false)
	o.grant(time.Minute, 1, 2, 3)
	o.d.gate = func(context.Context) { o.calls <- struct{}{} }
	got, err := o.Get(t.Context(), o.ns, theLease, itemsOf(1, 2, 3))
	if err != nil || len(got) != 3 || len(o.calls) != 0 {
		t.Fatalf("%+v, %v, after %d calls", got, err, len(o.calls))
	}
	var refs []uint64
	for i, r := range got {
		if b := o.Segments()[r.Place.Segment].Data()[r.Place.Offset]; r.Status != store.GetReady || b != byte(1+i) {
			t.Errorf("chunk %d: %+v, byte %d", i, r, b)
		}
		refs = append(refs, r.Ref)
	}
	before := o.d.master.Stats()
	if err := o.Release(t.Context(), refs); err != nil {
		t.Fatal(err)
	}
	o.becomes(0)
	if after := o.d.master.Stats(); after.GetsReady != before.GetsReady+3 {
		t.Errorf("%d chunks were read, want 3", after.GetsReady-before.GetsReady)
	}
	// It is used up.
	if _, err := o.Get(t.Context(), o.ns, theLease, itemsOf(1)); err != nil || len(o.calls) < 2 {
		t.Errorf("a second load made no call: %v", err)
	}
}

// TestOfferUsedInPart: the engine had the beginning. What it did not want goes back.
func TestOfferUsedInPart(t *testing.T) {
	o := newOffered(t, false)
	o.grant(time.Minute, 1, 2, 3)
	got, err := o.Get(t.Context(), o.ns, theLease, itemsOf(2, 3))
	if err != nil || len(got) != 2 || got[0].Status != store.GetReady {
		t.Fatalf("%+v, %v", got, err)
	}
	o.becomes(2)
	if err := o.Release(t.Context(), []uint64{got[0].Ref, got[1].Ref}); err != nil {
		t.Fatal(err)
	}
	o.becomes(0)
}

// TestOfferOfSomethingElse: a load that wants more, or another order, asks.
func TestOfferOfSomethingElse(t *testing.T) {
	for _, want := range [][]byte{{1, 2, 3}, {2, 1}} {
		o := newOffered(t, false)
		o.grant(time.Minute, 1, 2)
		o.d.gate = func(context.Context) { o.calls <- struct{}{} }
		got, err := o.Get(t.Context(), o.ns, theLease, itemsOf(want...))
		if err != nil || len(got) != len(want) || len(o.calls) != 1 {
			t.Fatalf("%v: %+v, %v, after %d calls", want, got, err, len(o.calls))
		}
		o.becomes(len(want)) // and what was offered has gone back
	}
}

// TestOfferThatIsNotUsedGoesBack: the request was given up, or never loaded.
func TestOfferThatIsNotUsedGoesBack(t *testing.T) {
	o := newOffered(t, false)
	o.grant(50*time.Millisecond, 1, 2, 3)
	o.becomes(0)
	if o.waits() {
		t.Error("the client keeps what it has given back")
	}
}

// TestOfferIsVoidAfterARemoval: as a load that asks would see it.
func TestOfferIsVoidAfterARemoval(t *testing.T) {
	o := newOffered(t, false)
	o.grant(time.Minute, 1)
	if err := o.d.master.Reset(o.ns.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := o.Get(t.Context(), o.ns, theLease, itemsOf(1)); !errors.Is(err, store.ErrStaleNamespace) {
		t.Errorf("after a reset: %+v, %v", got, err)
	}
	o.becomes(0)
}

// TestOffersEndWithTheirSession: a master that they are declared to would keep
// them for ever, for nobody uses them.
func TestOffersEndWithTheirSession(t *testing.T) {
	o := newOffered(t, false)
	o.grant(time.Minute, 1, 2)
	o.mu.Lock()
	session := o.session
	o.mu.Unlock()
	changed := o.Changed()
	o.endSession(session)
	for o.Ready() == false || o.sessionIfOpen().GetNumber() == session {
		<-changed
		changed = o.Changed()
	}
	o.becomes(0)
	if o.waits() {
		t.Error("the offer outlives its session")
	}
	o.grant(time.Minute, 1, 2) // the new session follows the engine too
}

// TestNobodyIsFollowed: offers end when the engine has gone, though it asked a
// moment before and nothing of an offer is open.
func TestNobodyIsFollowed(t *testing.T) {
	o := newOffered(t, false)
	o.grant(30*time.Millisecond, 1)
	o.stop()
	for deadline := time.Now().Add(20 * time.Second); ; {
		got, err := o.Get(t.Context(), o.ns, store.Lease{Engine: "e", Request: "another"}, itemsOf(1))
		if err != nil || o.Release(t.Context(), []uint64{got[0].Ref}) != nil {
			t.Fatal(err)
		}
		o.becomes(0)
		before := o.d.master.Stats().Offers
		o.d.master.Grant(o.ns.ID, theLease, []store.ChunkKey{{Hash: kv.Hash{1}}}, 30*time.Millisecond)
		if o.d.master.Stats().Offers == before {
			return
		}
		if time.Now().After(deadline) { // until it has heard of it each grant is an offer
			t.Fatal("offers go on after the engine has gone")
		}
	}
}

// TestMasterWithoutOffers: an older one ends a session on which it is told what it
// does not know.
func TestMasterWithoutOffers(t *testing.T) {
	o := newOffered(t, true)
	session := o.sessionIfOpen().GetNumber()
	o.d.master.Grant(o.ns.ID, theLease, []store.ChunkKey{{Hash: kv.Hash{1}}}, time.Minute)
	if got := get(t, o.Client, o.ns, 1); got.Status != store.GetReady || o.sessionIfOpen().GetNumber() != session {
		t.Errorf("got %+v in session %d, which was %d", got, o.sessionIfOpen().GetNumber(), session)
	}
	if offers := o.d.master.Stats().Offers; offers != 0 {
		t.Errorf("%d offers", offers)
	}
}
