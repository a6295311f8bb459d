package lookupd

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
)

const (
	// inquiryLimit is how long the store is asked for one request that nobody waits
	// for.
	inquiryLimit = 2 * time.Second
	// defaultWait is how long a lookup waits for the store when its engine has not
	// said how long it waits for the lookup, and inTreeWait when it is the in-tree
	// connector, which has no deadline.
	defaultWait = 25 * time.Millisecond
	inTreeWait  = time.Second
	// maxInquiries bounds those of one engine at a time.
	maxInquiries = 256
	// maxRounds bounds the questions for one request: their sizes grow.
	maxRounds = 1024
	// answerKept is how long after an inquiry what it could not find out counts as
	// absent. Later it is begun anew.
	answerKept = time.Second
)

// inquiries have the store asked what the view of a lookup does not know. Those of
// an engine that asks again run beside its lookups, one for each request; the
// others are waited for.
type inquiries struct {
	catalog Catalog
	rules   *coordinator.Coordinator
	ns      store.NamespaceID
	// beside: the engine asks again until it is told.
	beside bool
	wait   time.Duration

	ctx  context.Context //nolint:containedctx // the engine's, which the inquiries end with
	stop context.CancelFunc
	work sync.WaitGroup

	mu        sync.Mutex
	byRequest map[string]*inquiry
}

// inquiry is what is being found out for one request.
type inquiry struct {
	done  chan struct{}
	ended time.Time // set before done is closed
}

func (i *inquiry) over() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

func newInquiries(catalog Catalog, rules *coordinator.Coordinator, ns store.NamespaceID, of *connector.Engine) *inquiries {
	q := &inquiries{catalog: catalog, rules: rules, ns: ns, beside: of.LookupAsync, wait: defaultWait, byRequest: map[string]*inquiry{}}
	if of.LookupTimeoutMS > 0 {
		// The answer must be there in time, or the engine takes us for dead.
		q.wait = time.Duration(of.LookupTimeoutMS) * time.Millisecond / 2
	}
	q.ctx, q.stop = context.WithCancel(context.Background())
	return q
}

// close ends the inquiries and waits for them.
func (q *inquiries) close() {
	q.stop()
	q.work.Wait()
}

// inquire finds out what a lookup could not tell, or begins to. The answer is
// pending while the engine is to ask again.
func (h *handler) inquire(r *wire.Request, found coordinator.Lookup) (coordinator.Lookup, error) {
	q := h.engine.inquiries
	if r.Kind == wire.KindLookup2 && q.beside {
		if q.under(string(r.ID), r) {
			return found, nil
		}
		// It may have ended since the lookup looked. What is not known now counts as
		// absent: it has been asked.
		found, err := h.find(r)
		found.Pending, found.Asks = false, nil
		return found, err
	}
	wait := q.wait
	if r.Kind == wire.KindLookup {
		wait = inTreeWait
	}
	ctx, cancel := context.WithTimeout(q.ctx, wait)
	defer cancel()
	q.run(ctx, r.Tokens, r.Hashes)
	found, err := h.find(r)
	found.Pending, found.Asks = false, nil
	return found, err
}

// answered forgets the inquiry for a request of which all is known.
func (q *inquiries) answered(r *wire.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := q.byRequest[string(r.ID)]; i != nil && i.over() {
		delete(q.byRequest, string(r.ID))
	}
}

// under tells whether an inquiry for a request is under way, after it has begun one
// if there was none, or one that ended long ago. False: one has just ended, and is
// forgotten.
func (q *inquiries) under(id string, r *wire.Request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := q.byRequest[id]; i != nil {
		if !i.over() {
			return true
		}
		delete(q.byRequest, id)
		if time.Since(i.ended) < answerKept {
			return false
		}
	}
	if len(q.byRequest) >= maxInquiries {
		// Of requests that were given up.
		for id, i := range q.byRequest {
			if i.over() {
				delete(q.byRequest, id)
			}
		}
	}
	if len(q.byRequest) >= maxInquiries || q.ctx.Err() != nil {
		return true // the next time, perhaps
	}
	hashes, err := kv.NewHashBlob(bytes.Clone(r.Hashes.Bytes()), r.Hashes.HashLen())
	if err != nil {
		panic("BUG: a copy of hashes is none: " + err.Error())
	}
	i, tokens := &inquiry{done: make(chan struct{})}, r.Tokens
	q.byRequest[id] = i
	q.work.Go(func() {
		defer func() {
			i.ended = time.Now()
			close(i.done)
		}()
		ctx, cancel := context.WithTimeout(q.ctx, inquiryLimit)
		defer cancel()
		q.run(ctx, tokens, hashes)
	})
	return true
}

// run asks until a lookup knows all that it depends on, the store can't be asked,
// or ctx is done.
func (q *inquiries) run(ctx context.Context, tokens int, hashes kv.HashBlob) {
	var ask questions
	var last probe
	for round := range maxRounds {
		ask.begin()
		found, err := q.look(tokens, hashes, &ask)
		if err != nil || found.Asks == nil || len(ask.probed) == 0 {
			return
		}
		if round > 0 && ask.probed[0] == last {
			return // it was asked, and nobody remembers
		}
		last = ask.probed[0]
		chosen, all := ask.next(found.Asks)
		chunks := make([]store.ChunkKey, len(chosen))
		for i, p := range chosen {
			chunks[i] = store.ChunkKey{Group: uint32(p.group), Hash: hashes.At(p.hash)}
		}
		if err := q.catalog.Ask(ctx, q.ns, chunks); err != nil || ctx.Err() != nil || all {
			return
		}
	}
}

// look applies the rules to what is known, and notes what is not.
func (q *inquiries) look(tokens int, hashes kv.HashBlob, ask *questions) (coordinator.Lookup, error) {
	view := q.catalog.View(q.ns)
	defer view.Close()
	return q.rules.Lookup(tokens, hashes.Len(), func(group, hash int) kv.Existence {
		answer := view.Exists(group, hashes.At(hash))
		if answer == kv.Unknown {
			ask.unknown(probe{group, hash})
		}
		return answer
	})
}
