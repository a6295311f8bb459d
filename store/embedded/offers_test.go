package embedded

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// following is a client that follows engine "e", and what it was sent.
type following struct {
	*world
	s      Session
	ns     store.Namespace
	offers chan *connector.Offer
}

// newFollowing stores chunks of two shards; the client loads the second.
func newFollowing(t *testing.T, chunks int) *following {
	w := newWorld(t, 64<<20)
	f := &following{world: w, s: w.open(1, 1, 10, Declaration{}), ns: w.namespace(testSpec("m", 16<<10, 2)), offers: make(chan *connector.Offer, queuedOffers)}
	for chunk := range chunks {
		for shard := range 2 {
			w.store(f.s, f.ns, chunk, shard)
		}
	}
	f.follow(f.s, 1)
	return f
}

func (f *following) follow(s Session, held int) {
	f.tb.Helper()
	if err := f.m.follow(s, &connector.Follow{Engine: "e", ShardByGroup: []int{2 - held}, HeldShards: held}, f.offers); err != nil {
		f.tb.Fatal(err)
	}
}

func (f *following) grant(request string, chunks ...int) *connector.Offer {
	keys := make([]store.ChunkKey, len(chunks))
	for i, chunk := range chunks {
		keys[i] = store.ChunkKey{Hash: testHash(chunk)}
	}
	f.m.Grant(f.ns.ID, store.Lease{Engine: "e", Request: request}, keys, 30*time.Second)
	select {
	case offer := <-f.offers:
		return offer
	default:
		return nil
	}
}

func refsOf(offer *connector.Offer) (refs []uint64) {
	for i := range offer.Len() {
		refs = append(refs, offer.At(i).Ref)
	}
	return refs
}

// TestOfferIsWhatALoadAsksFor: the same places as Get's, in a load's order, and
// counted as reads when they were used.
func TestOfferIsWhatALoadAsksFor(t *testing.T) {
	f := newFollowing(t, 3)
	f.follow(f.s, 2)
	offer := f.grant("r", 0, 1, 2)
	if offer == nil || offer.Len() != 6 || offer.Engine != "e" || offer.Request != "r" || offer.LifeMS != 1000 ||
		(store.Namespace{ID: store.NamespaceID(offer.Namespace), ResetEpoch: offer.Generation}) != f.ns || offer.Removals != Removals(f.mem) {
		t.Fatalf("offered %+v", offer)
	}
	var items []store.GetItem
	for chunk := range 3 {
		for shard := range 2 {
			items = append(items, store.GetItem{Hash: testHash(chunk), Shard: uint32(shard)})
		}
	}
	before := f.m.Stats()
	if before.GetsReady != 0 || before.OpenReads != 6 {
		t.Errorf("an offer counts as %d reads, and %d references are open", before.GetsReady, before.OpenReads)
	}
	asked, err := f.m.Get(f.s, f.ns, store.Lease{}, items)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range asked {
		got := offer.At(i)
		if got.Hash != items[i].Hash || got.Shard != items[i].Shard || got.Offset != want.Place.Offset || got.Bytes != want.Place.Bytes || got.Checksum != want.Checksum || got.Ref == want.Ref {
			t.Errorf("item %d: offered %+v, asked for it is %+v", i, got, want)
		}
		if err := f.m.Release(f.s, []uint64{want.Ref}); err != nil {
			t.Fatal(err)
		}
	}
	refs := refsOf(offer)
	if err := errors.Join(f.m.Release(f.s, refs[:4]), f.m.decline(f.s, refs[4:])); err != nil {
		t.Fatal(err)
	}
	after := f.m.Stats()
	if after.GetsReady != 6+4 || after.ReadBytes != 10*16<<10 || after.OpenReads != 0 || after.Offers != 1 || after.OffersDeclined != 1 {
		t.Errorf("in the end: %+v", after)
	}
	if c := f.m.clients[1]; c.offered != 0 || c.offerBytes != 0 || f.m.offeredBytes != 0 {
		t.Errorf("the client has %d offered references open, of %d bytes; %d bytes are kept", c.offered, c.offerBytes, f.m.offeredBytes)
	}
}

func TestAllIsOfferedOrNothing(t *testing.T) {
	f := newFollowing(t, 3)
	f.store(f.s, f.ns, 3, 0) // half a chunk
	if offer := f.grant("r", 0, 1, 3); offer != nil || f.m.Stats().OpenReads != 0 {
		t.Errorf("offered %+v of a hit that is not there, %d references are open", offer, f.m.Stats().OpenReads)
	}
	if err := f.m.follow(f.s, &connector.Follow{Engine: "e", ShardByGroup: []int{2}, HeldShards: 1}, f.offers); err != nil {
		t.Fatal(err)
	}
	if offer := f.grant("r", 0, 1); offer != nil || f.m.Stats().OpenReads != 0 {
		t.Errorf("offered %+v of a shard that there is not", offer)
	}
	if err := f.m.follow(f.s, &connector.Follow{Engine: "e"}, f.offers); err != nil {
		t.Fatal(err)
	}
	if offer := f.grant("r", 0, 1); offer != nil || len(f.m.followers) != 0 {
		t.Errorf("offered %+v to nobody who follows the engine", offer)
	}
}

// TestOffersInVainEnd: an engine that has all of it in a cache of its own is
// offered nothing, until it loads again.
func TestOffersInVainEnd(t *testing.T) {
	f := newFollowing(t, 1)
	for i := range vainOffers {
		offer := f.grant("r", 0)
		if offer == nil {
			t.Fatalf("nothing was offered after %d times in vain", i)
		}
		if err := f.m.decline(f.s, refsOf(offer)); err != nil {
			t.Fatal(err)
		}
	}
	if offer := f.grant("r", 0); offer != nil {
		t.Errorf("offered %+v", offer)
	}
	got, err := f.m.Get(f.s, f.ns, store.Lease{Engine: "e", Request: "r"}, []store.GetItem{{Hash: testHash(0), Shard: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if f.grant("r", 0) == nil {
		t.Error("nothing was offered after a load")
	}
	// Used in part each time.
	for range 2 * vainOffers {
		if err := f.m.Release(f.s, []uint64{got[0].Ref}); err != nil {
			t.Fatal(err)
		}
		offer := f.grant("r", 0)
		if offer == nil {
			t.Fatal("nothing was offered to who uses it")
		}
		got[0].Ref = offer.At(0).Ref
	}
}

// TestOffersAreBounded: who does not give back is offered no more, also where the
// number is small but not the bytes, and nobody waits for who does not read.
func TestOffersAreBounded(t *testing.T) {
	f := newFollowing(t, 40)
	all := make([]int, 40)
	for i := range all {
		all[i] = i
	}
	made := 0
	for f.grant("r", all...) != nil {
		made += len(all)
	}
	if most := int(64 << 20 * offerShare / (16 << 10)); made == 0 || made > most || made > openOffers {
		t.Errorf("%d references are open", made)
	}
	if open := f.m.Stats().OpenReads; open != made {
		t.Errorf("%d references are open, %d were offered", open, made)
	}

	unread := newFollowing(t, 1)
	for range 2 * queuedOffers {
		unread.m.Grant(unread.ns.ID, store.Lease{Engine: "e", Request: "r"}, []store.ChunkKey{{Hash: testHash(0)}}, time.Second)
	}
	if open := unread.m.Stats().OpenReads; open != queuedOffers {
		t.Errorf("%d references are open, %d offers are on their way", open, queuedOffers)
	}
}

// stopped is the session of a client that reads nothing more: what is sent to it
// fills the socket, and ends it when that is full.
type stopped struct {
	tb       testing.TB
	incoming chan any
	near     int // the socket
	far      int
	full     atomic.Bool
}

func newStopped(tb testing.TB) *stopped {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) })
	return &stopped{tb: tb, incoming: make(chan any, 8), near: ends[0], far: ends[1]}
}

func (s *stopped) Send(msg any, _ ...int) error {
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		return err
	}
	if n, err := unix.Write(s.near, frame); err != nil || n < len(frame) {
		s.full.Store(true)
		return errors.New("the socket is full")
	}
	return nil
}

func (s *stopped) Receive() (any, error) {
	if msg, ok := <-s.incoming; ok {
		return msg, nil
	}
	return nil, io.EOF
}

func (s *stopped) Close() {}

// TestOffersDoNotFillASocket: a client that is stopped keeps its session, however many
// hits it is offered meanwhile, short or long, with names of any length.
func TestOffersDoNotFillASocket(t *testing.T) {
	for _, chunks := range []int{1, 2, 3, 10, 30, 100, 500} {
		for _, name := range []int{1, 100, 1000} {
			t.Run(fmt.Sprintf("chunks=%d/name=%d", chunks, name), func(t *testing.T) {
				w := newWorld(t, 64<<20)
				s, ns := w.open(1, 1, 10, Declaration{}), w.namespace(testSpec("m", 1<<10, 1))
				keys := make([]store.ChunkKey, chunks)
				for i := range keys {
					w.store(s, ns, i, 0)
					keys[i] = store.ChunkKey{Hash: testHash(i)}
				}
				talk := newStopped(t)
				talk.incoming <- &connector.Follow{Engine: "e", ShardByGroup: []int{0}, HeldShards: 1}
				var session sync.WaitGroup
				session.Go(func() { _ = w.m.converse(talk, s) })
				for len(w.m.followersOf("e")) == 0 {
					runtime.Gosched()
				}
				lease := store.Lease{Engine: "e", Request: strings.Repeat("r", name)}
				for range 1000 {
					w.m.Grant(ns.ID, lease, keys, 30*time.Second)
					runtime.Gosched() // what waits to be sent is bounded too
				}
				close(talk.incoming)
				session.Wait()
				if made := w.m.Stats().Offers; talk.full.Load() || made == 0 {
					t.Errorf("the socket is full: %v, after %d offers", talk.full.Load(), made)
				}
			})
		}
	}
}

// TestDeclinedOffersAreCounted: each once, whether its references come back in one
// message or in several, alone or with others'.
func TestDeclinedOffersAreCounted(t *testing.T) {
	f := newFollowing(t, 4)
	one, two, three := refsOf(f.grant("1", 0, 1)), refsOf(f.grant("2", 1, 2)), refsOf(f.grant("3", 3))
	for i, refs := range [][]uint64{append(one, two[0]), two[1:], three} {
		if err := f.m.decline(f.s, refs); err != nil {
			t.Fatal(err)
		}
		if declined, want := f.m.Stats().OffersDeclined, []uint64{2, 2, 3}[i]; declined != want {
			t.Errorf("%d offers count as declined after %d messages, want %d", declined, i+1, want)
		}
	}
	if open := f.m.Stats().OpenReads; open != 0 {
		t.Errorf("%d references are open", open)
	}
	if f.grant("4", 0) == nil {
		t.Error("nothing was offered after three in vain")
	}
}

// TestOfferedReferencesAreTheClients: they outlive its session, as others do, and
// a removal; and go with its process.
func TestOfferedReferencesAreTheClients(t *testing.T) {
	f := newFollowing(t, 2)
	offer := f.grant("r", 0, 1)
	was := slices.Clone(f.place(store.Place{Offset: offer.At(0).Offset, Bytes: offer.At(0).Bytes}))
	if err := f.m.Reset(f.ns.ID); err != nil {
		t.Fatal(err)
	}
	if offer.Removals == Removals(f.mem) {
		t.Error("a reset does not void what was offered")
	}
	ns := f.namespace(testSpec("m", 16<<10, 2))
	for chunk := 100; f.store(f.s, ns, chunk, 0) == store.PutGranted; chunk++ {
		f.store(f.s, ns, chunk, 1)
		if chunk > 10_000 {
			break // the store is full over and over
		}
	}
	if got := f.place(store.Place{Offset: offer.At(0).Offset, Bytes: offer.At(0).Bytes}); !slices.Equal(got, was) {
		t.Error("memory under an offered reference was written to")
	}
	f.m.unfollow(1, f.offers)
	f.m.SessionLost(f.s)
	if open := f.m.Stats().OpenReads; open != 2 {
		t.Errorf("%d references are open while the process may run", open)
	}
	f.alive[10] = false
	f.m.Reap()
	if open := f.m.Stats().OpenReads; open != 0 || len(f.m.followers) != 0 {
		t.Errorf("%d references are open, %d engines followed", open, len(f.m.followers))
	}
}

// TestRemovalsVoidOffers: what Get would not give any more.
func TestRemovalsVoidOffers(t *testing.T) {
	f := newFollowing(t, 2)
	at := Removals(f.mem)
	for chunk := 100; f.m.Stats().Removed[RemovedEvicted] == 0; chunk++ {
		f.store(f.s, f.ns, chunk, 0)
		f.store(f.s, f.ns, chunk, 1)
	}
	if Removals(f.mem) != at {
		t.Error("the eviction of what nobody holds voids offers")
	}
	f.store(f.s, f.ns, 0, 0)
	f.store(f.s, f.ns, 0, 1)
	if err := f.m.ReportFailed(f.s, f.ns, []store.FailedChunk{{Hash: testHash(0), Corrupt: true}, {Hash: testHash(1), Corrupt: true}}); err != nil {
		t.Fatal(err)
	}
	if Removals(f.mem) == at {
		t.Error("a corrupt chunk that was dropped may still be loaded")
	}
	f.store(f.s, f.ns, 5, 0)
	f.store(f.s, f.ns, 5, 1)
	at = Removals(f.mem)
	if _, err := f.m.Remove(t.Context(), Scope{Namespace: &f.ns.ID, Hashes: []kv.Hash{testHash(5)}}); err != nil {
		t.Fatal(err)
	}
	if Removals(f.mem) == at {
		t.Error("a chunk that an operator removed may still be loaded")
	}
}

// TestOffersOfAnEndedSession: what a session that another has replaced would be sent
// reaches nobody who could decline it.
func TestOffersOfAnEndedSession(t *testing.T) {
	f := newFollowing(t, 1)
	again := f.open(1, 2, 10, Declaration{})
	if offer := f.grant("r", 0); offer != nil || f.m.Stats().OpenReads != 0 {
		t.Errorf("offered %+v to an ended session; %d references are open", offer, f.m.Stats().OpenReads)
	}
	f.follow(again, 1)
	if f.grant("r", 0) == nil {
		t.Error("nothing was offered to the next session")
	}
}
