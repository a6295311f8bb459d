package client

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// declinePause gathers what is declined: it wakes the master, and what was offered
// along with it is being copied.
const declinePause = 20 * time.Millisecond

// maxOffers bounds the offers that wait to be used.
const maxOffers = 1024

// followed is an engine of which the master is to offer what lookups find.
type followed struct {
	shards []int
	held   int
}

// offers are the references that came unasked.
//
// INVARIANT: each of them is held by the client.
type offers struct {
	engines map[string]*followed
	// changed are the engines of which the master is to be told.
	changed map[string]bool
	waiting map[store.Lease]*offer
	// spare are the master's numbers of what is to be declined.
	spare []uint64
	// due is when there is something to decline, the zero time for never.
	due time.Time
	// wake has an element when changed or due is to be looked at.
	wake chan struct{}
}

func newOffers() offers {
	return offers{
		engines: map[string]*followed{}, changed: map[string]bool{}, waiting: map[store.Lease]*offer{}, wake: make(chan struct{}, 1),
	}
}

// offer is what was offered for one load.
type offer struct {
	session  uint64
	ns       store.Namespace
	removals uint64
	items    []store.GetItem
	results  []store.GetResult
	until    time.Time
}

// Follow has the master offer references on what the engine's lookups find, so
// that a Get under its lease need not ask: on held shards of each group from a
// first one on. stop ends it.
func (c *Client) Follow(engine string, shards []int, held int) (stop func()) {
	f := &followed{shards: shards, held: held}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offers.engines[engine] = f
	c.tellLocked(engine)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.offers.engines[engine] == f { // else another rank of the engine came after
			delete(c.offers.engines, engine)
			c.tellLocked(engine)
		}
	}
}

func (c *Client) tellLocked(engine string) {
	c.offers.changed[engine] = true
	c.offers.look()
}

func (o *offers) look() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// dueBy has what is to be declined looked at by then.
func (o *offers) dueBy(at time.Time) {
	if o.due.IsZero() || at.Before(o.due) {
		o.due = at
		o.look()
	}
}

// takeIn notes an offer of the session. It takes the place of an earlier one for
// the lease.
func (c *Client) takeIn(session uint64, m *connector.Offer) {
	o := &offer{
		session: session,
		ns:      store.Namespace{ID: store.NamespaceID(m.Namespace), ResetEpoch: m.Generation}, removals: m.Removals,
		items: make([]store.GetItem, m.Len()), results: make([]store.GetResult, m.Len()), until: time.Now().Add(time.Duration(m.LifeMS) * time.Millisecond),
	}
	refs := make([]uint64, m.Len())
	for i := range refs {
		refs[i] = m.At(i).Ref
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	segment, ok := c.holdLocked(session, refs, false)
	if !ok {
		return
	}
	for i := range refs {
		it := m.At(i)
		o.items[i] = store.GetItem{Group: it.Group, Hash: it.Hash, Shard: it.Shard}
		o.results[i] = store.GetResult{
			Status: store.GetReady, Ref: refs[i], Checksum: it.Checksum, Tier: store.TierHost,
			Place: store.Place{Segment: uint32(segment), Offset: it.Offset, Bytes: it.Bytes},
		}
	}
	lease := store.Lease{Engine: m.Engine, Request: m.Request}
	if earlier := c.offers.waiting[lease]; earlier != nil {
		delete(c.offers.waiting, lease)
		c.spareLocked(earlier.results)
	}
	if len(c.offers.waiting) >= maxOffers {
		c.spareLocked(o.results)
		return
	}
	c.offers.waiting[lease] = o
	c.offers.dueBy(o.until)
}

// offered returns references on just these items if they were offered and nothing
// has changed since; else nil. Of an offer nothing is left behind.
func (c *Client) offered(ns store.Namespace, lease store.Lease, items []store.GetItem) []store.GetResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.offers.waiting[lease]
	if o == nil {
		return nil
	}
	delete(c.offers.waiting, lease)
	results := make([]store.GetResult, 0, len(items))
	var rest []store.GetResult
	for i := range o.items {
		if n := len(results); n < len(items) && items[n] == o.items[i] {
			results = append(results, o.results[i])
		} else {
			rest = append(rest, o.results[i])
		}
	}
	late := o.session != c.session || !time.Now().Before(o.until)
	if late || len(results) < len(items) || ns != o.ns || embedded.Removals(c.segments[c.current].mapping.Bytes()) != o.removals {
		c.spareLocked(o.results)
		return nil
	}
	c.spareLocked(rest)
	return results
}

// spareLocked gives references up, which the master hears a little later.
func (c *Client) spareLocked(results []store.GetResult) {
	if len(results) == 0 {
		return
	}
	refs := make([]uint64, len(results))
	for i := range results {
		refs[i] = results[i].Ref
	}
	numbers, _ := c.dropLocked(refs)
	c.offers.spare = append(c.offers.spare, numbers...)
	c.offers.dueBy(time.Now().Add(declinePause))
}

// tell sends what the master is to be told at present: which engines are followed,
// and what is declined. It returns when the next is due, the zero time for never.
func (c *Client) tell(conn Conn) (next time.Time, err error) {
	changed, spare, next := c.toTell(time.Now())
	for _, m := range changed {
		if err := send(conn, m); err != nil {
			return next, err
		}
	}
	if len(spare) > 0 {
		err = send(conn, &connector.Decline{Type: connector.TypeDecline, Refs: spare})
	}
	return next, err
}

// toTell takes out what is to be told.
func (c *Client) toTell(now time.Time) (changed []*connector.Follow, spare []uint64, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.offers
	for engine := range o.changed {
		m := &connector.Follow{Type: connector.TypeFollow, Engine: engine}
		if f := o.engines[engine]; f != nil {
			m.ShardByGroup, m.HeldShards = f.shards, f.held
		}
		changed = append(changed, m)
	}
	clear(o.changed)
	if o.due.IsZero() || now.Before(o.due) {
		return changed, nil, o.due
	}
	next = time.Time{}
	for lease, w := range o.waiting {
		if !now.Before(w.until) {
			delete(o.waiting, lease)
			c.spareLocked(w.results)
		} else if next.IsZero() || w.until.Before(next) {
			next = w.until
		}
	}
	spare, o.spare = o.spare, nil
	o.due = next
	return changed, spare, next
}

// keepTelling tells the master of a session until stop is closed, or it can't.
func (c *Client) keepTelling(conn Conn, stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, err := c.tell(conn)
		if err != nil {
			return // the session's reader sees the end
		}
		var wait <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Until(next))
			wait = timer.C
		}
		select {
		case <-wait:
		case <-c.offers.wake:
		case <-stop:
			return
		}
	}
}

// beginOffers has every engine told of in a new session.
func (c *Client) beginOffers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.offers.changed)
	for engine := range c.offers.engines {
		c.offers.changed[engine] = true
	}
}

// endOffers forgets what was offered: the master gives back what its next session
// does not declare.
func (c *Client) endOffers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for lease, o := range c.offers.waiting {
		delete(c.offers.waiting, lease)
		c.spareLocked(o.results)
	}
	c.offers.spare, c.offers.due = nil, time.Time{}
}
