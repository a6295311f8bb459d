package lookupd

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

// errHashLength: the hashes are not those of the socket's namespace.
var errHashLength = errors.New("wrong hash length for the namespace")

// handler answers the requests that come one way, an engine's lookup socket or its
// channel.
//
// INVARIANT: it is called for one request at a time, so its buffers are kept from
// one to the next.
type handler struct {
	engine   *engine
	rules    *coordinator.Coordinator
	catalog  Catalog
	leaseTTL time.Duration
	log      *slog.Logger
	took     Observer // may be nil
	sampling sampling
	counters *counters

	// Of the request at hand.
	view   View
	hashes kv.HashBlob
	exists coordinator.ExistsFunc
	// chain is what is known of hashes, chaining that they are of a chain; follows is
	// exists then.
	chain    chain
	chaining bool
	follows  coordinator.ExistsFunc
	// ahead is what the view was told of: a group's hashes before next, of which
	// those from first to known are there. Who asks for it asks for hash after hash,
	// as a scan does and other rules do not.
	ahead ahead
	// lasts: nothing that is stored had a deadline when it was begun.
	lasts bool
	// due is what its answer owes: a lease, and that the sampler is shown the
	// hashes.
	due struct {
		shown   kv.HashBlob
		owed    bool
		request wire.Request
		found   coordinator.Lookup
	}

	tails  []coordinator.TailKeyBoundary
	chunks []store.ChunkKey
	tiers  []byte // of the hit, encoded
	reply  [2][]byte
	frames [][]byte
}

func newHandler(cfg Config, e *engine) *handler {
	h := &handler{engine: e, rules: e.rules, catalog: cfg.Catalog, leaseTTL: cfg.LeaseTTL, took: cfg.Took, log: cfg.Log, counters: &e.counters}
	h.sampling = newSampling(cfg.Sampler, &e.spec)
	h.exists, h.follows, h.chain = h.existence, h.chained, newChain(e.rules)
	return h
}

// ahead is what a view was told of one group, and what it has said of it.
type ahead struct{ group, first, known, next int }

// existence answers the coordinator's probes of the request at hand.
func (h *handler) existence(group, hashIndex int) kv.Existence {
	a := &h.ahead
	if group != a.group {
		*a = ahead{group: group}
	}
	if hashIndex == a.next {
		hashes := h.hashes
		if h.chaining {
			hashes = h.chain.told(hashIndex)
		}
		told, present := h.view.Ahead(group, hashes, hashIndex)
		if a.known != hashIndex {
			a.first = hashIndex
		}
		a.known, a.next = hashIndex+present, hashIndex+told
	}
	if hashIndex >= a.first && hashIndex < a.known {
		return kv.Present
	}
	found := h.view.Exists(group, h.hashes.At(hashIndex))
	if found == kv.Present && hashIndex == a.known {
		// Asked again, it is there: rules look at a hit's last chunk twice, and one that
		// went in between must not cost what is before it.
		a.known++
	}
	return found
}

// handle answers one request and does all that it asks for.
func (h *handler) handle(frames [][]byte) [][]byte {
	reply := h.answer(frames)
	h.finish()
	return reply
}

// answer answers one request. What else it asks for is done by finish, so that
// the engine need not wait for it.
func (h *handler) answer(frames [][]byte) (reply [][]byte) {
	h.due.owed, h.due.shown = false, kv.HashBlob{}
	defer func() {
		if fault := recover(); fault != nil {
			reply = h.panicked(fault)
		}
	}()
	r, err := wire.ParseRequest(frames)
	switch {
	case errors.Is(err, wire.ErrUnknownTag):
		return h.fail(ReasonUnknownTag, err)
	case err != nil:
		return h.fail(ReasonMalformed, err)
	}
	switch r.Kind {
	case wire.KindPing:
		h.counters.pings.Add(1)
		return h.status(wire.OK)
	case wire.KindReset, wire.KindReset2:
		return h.reset(r.Kind)
	case wire.KindRelease:
		h.release(r.Requests)
		return h.status(wire.OK)
	case wire.KindSeen:
		if err := h.checkLength(r.Hashes); err != nil {
			return h.fail(ReasonHashLength, err)
		}
		h.due.shown = r.Hashes
		return h.status(wire.OK)
	case wire.KindLookup, wire.KindLookup2, wire.KindLookup3:
		began := time.Now()
		reply = h.lookup(&r)
		if h.took != nil {
			h.took.Observe(time.Since(began).Seconds())
		}
		return reply
	}
	panic(fmt.Sprintf("BUG: a parsed request of kind %d", r.Kind))
}

// reset drops the chunks of the engine's namespace. A shim is told which
// generation it begins, or one that another reset has begun since.
func (h *handler) reset(kind wire.Kind) [][]byte {
	if err := h.catalog.Reset(h.engine.ns.ID); err != nil {
		return h.fail(ReasonStore, err)
	}
	now, err := h.catalog.OpenNamespace(&h.engine.spec)
	if err != nil {
		return h.fail(ReasonStore, err)
	}
	h.counters.resets.Add(1)
	h.log.Info("namespace reset", "engine", h.engine.name, "model", h.engine.spec.Model)
	h.frames = h.status(wire.OK)
	if kind == wire.KindReset2 {
		h.reply[1] = wire.AppendGeneration(h.reply[1][:0], now.ResetEpoch)
		h.frames = append(h.frames, h.reply[1])
	}
	return h.frames
}

func (h *handler) checkLength(hashes kv.HashBlob) error {
	if want := h.engine.spec.HashBytes; hashes.Len() > 0 && hashes.HashLen() != want {
		return fmt.Errorf("%w: %d bytes, want %d", errHashLength, hashes.HashLen(), want)
	}
	return nil
}

// lookup answers how much of a request is stored.
func (h *handler) lookup(r *wire.Request) [][]byte {
	if err := h.checkLength(r.Hashes); err != nil {
		return h.fail(ReasonHashLength, err)
	}
	found, err := h.find(r)
	switch {
	case err != nil:
	case h.chaining && !h.chain.wanted.empty():
		return h.askMore(r)
	case found.Asks != nil:
		found, err = h.inquire(r, found)
	case r.Kind != wire.KindLookup:
		h.engine.inquiries.answered(r)
	}
	if err != nil {
		return h.fail(ReasonUnservable, err)
	}
	if found.Tails != nil {
		h.tails = found.Tails
	}
	if r.Kind != wire.KindLookup && found.HitTokens > 0 && !found.Pending {
		h.due.owed, h.due.request, h.due.found = true, *r, found
	}
	var flags byte
	if h.chaining && !h.sampling.known(&h.chain) {
		flags = wire.FlagShow
	} else {
		h.due.shown = r.Hashes
	}
	h.counters.lookups.Add(1)
	if found.HitTokens == 0 {
		h.counters.misses.Add(1)
	}
	h.counters.queryTokens.Add(uint64(r.Tokens))
	h.counters.hitTokens.Add(uint64(found.HitTokens))

	h.reply[0] = wire.AppendHit(h.reply[0][:0], found.HitTokens)
	for _, tail := range found.Tails {
		h.reply[0] = wire.AppendBoundary(h.reply[0], tail.Group, tail.Tokens)
	}
	h.frames = append(h.frames[:0], h.reply[0])
	if r.Kind != wire.KindLookup {
		if found.Pending {
			flags |= wire.FlagPending
			h.counters.pending.Add(1)
		} else if h.lasts && len(h.tiers) == 0 {
			flags |= wire.FlagLasting
		}
		h.reply[1] = append(wire.AppendStatus(h.reply[1][:0], r.Seq, flags), h.tiers...)
		h.frames = append(h.frames, h.reply[1])
	}
	return h.frames
}

// find asks the coordinator over a view of the catalog, which is closed whatever
// happens: it may hold a lock. The hashes of a chain are in the request then, as far
// as they are known; without an answer it says what is wanted.
func (h *handler) find(r *wire.Request) (found coordinator.Lookup, err error) {
	exists := h.exists
	if h.chaining = r.Kind == wire.KindLookup3; h.chaining {
		r.Hashes, exists = h.chain.begin(r), h.follows
	}
	h.view, h.hashes = h.catalog.View(h.engine.ns.ID), r.Hashes
	h.ahead, h.lasts = ahead{}, h.lasting()
	answered := true
	defer func() {
		if answered {
			h.view.Close()
		} else {
			h.view.Abandon()
		}
		h.view, h.hashes = nil, kv.HashBlob{}
	}()
	found, err = h.rules.LookupInto(h.tails[:0], r.Tokens, r.Hashes.Len(), exists)
	h.tiers = h.tiers[:0]
	if h.chaining && found.Asks != nil {
		h.chain.wanted = span{0, h.chain.n} // to be asked for all at once
	}
	switch {
	case h.chaining && !h.chain.wanted.empty():
		answered = false
	case err == nil && r.Kind != wire.KindLookup:
		h.tiers = h.appendTiers(h.tiers, &found)
	}
	return found, err
}

// owes tells whether finish has anything to do.
func (h *handler) owes() bool { return h.due.owed || h.due.shown.Len() > 0 }

// muchOwed is how many chunks are leased behind an answer, not beside it.
const muchOwed = 512

// owesMuch tells whether finish takes longer than an engine takes to wake up.
func (h *handler) owesMuch() bool {
	return h.due.shown.Len() > muchOwed || h.due.owed && h.due.found.HitTokens/h.engine.spec.HashBlockTokens > muchOwed
}

// finish grants the lease that the last answer owes, and shows the sampler what
// was looked up.
//
// REQUIRES: the frames of that request are as they were. The answer may not have
// been sent yet: it stays as it is.
func (h *handler) finish() {
	owed, shown := h.due.owed, h.due.shown
	h.due.owed, h.due.shown = false, kv.HashBlob{}
	defer func() {
		if fault := recover(); fault != nil {
			h.complain(fault)
		}
	}()
	h.sampling.note(shown)
	if !owed {
		return
	}
	if err := h.grant(&h.due.request, &h.due.found); err != nil {
		h.count(ReasonUnservable, err)
	}
}

// release gives up requests' leases.
func (h *handler) release(ids [][]byte) {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = string(id)
	}
	h.catalog.ReleaseLeases(h.engine.name, names)
}

// panicked reports our own fault and returns the answer to the request.
func (h *handler) panicked(fault any) [][]byte {
	h.complain(fault)
	return h.status(wire.Failed)
}

// complain reports our own fault.
func (h *handler) complain(fault any) {
	h.log.Error("BUG: a lookup has panicked", "engine", h.engine.name, "panic", fault, "stack", string(debug.Stack()))
	h.count(ReasonPanic, nil)
}

// grant leases the chunks that a load of the hit will fetch.
func (h *handler) grant(r *wire.Request, found *coordinator.Lookup) error {
	masks, err := h.rules.LoadMask(found.HitTokens)
	if err != nil {
		return err
	}
	spec := &h.engine.spec
	h.chunks = h.chunks[:0]
	for g, mask := range masks {
		last := (found.HitTokens+spec.Groups[g].BlockTokens-1)/spec.Groups[g].BlockTokens - 1
		for i := mask.First; i < mask.End(); i++ {
			if !mask.Has(i) {
				continue
			}
			at := h.rules.HashIndex(g, i)
			if i == last {
				at = found.Tails[g].Tokens/spec.HashBlockTokens - 1
			}
			if at < r.Hashes.Len() {
				if r.Kind == wire.KindLookup3 {
					h.chain.mustKnow(at)
				}
				h.chunks = append(h.chunks, store.ChunkKey{Group: uint32(g), Hash: r.Hashes.At(at)})
			}
		}
	}
	h.catalog.Grant(h.engine.ns.ID, store.Lease{Engine: h.engine.name, Request: string(r.ID)}, h.chunks, h.leaseTTL)
	h.counters.leases.Add(1)
	return nil
}

// fail counts and answers what could not be done. For a lookup the answer means
// a hit of 0.
func (h *handler) fail(reason Reason, err error) [][]byte {
	h.count(reason, err)
	return h.status(wire.Failed)
}

func (h *handler) count(reason Reason, err error) {
	h.counters.errors[reason].Add(1)
	if err != nil {
		h.log.Debug("lookup request refused", "engine", h.engine.name, "reason", reason.String(), "error", err)
	}
}

func (h *handler) status(code byte) [][]byte {
	h.reply[0] = append(h.reply[0][:0], code)
	h.frames = append(h.frames[:0], h.reply[0])
	return h.frames
}
