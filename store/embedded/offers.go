package embedded

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
)

// A load that has a lookup behind it asks for references on just what the lookup
// leased, while a request waits. So a client that follows the lookup's engine is
// offered them behind the lookup's answer: by the time that the engine has
// allocated blocks and its job has come, the client has them.
//
// An offered reference is a reference: it is held until the client gives it back,
// or is dead for certain. All that a load will ask for is offered at once, or
// nothing. What the client has not used after a second it declines. Whether a
// reference is still to be had when the load begins, as it would be if it asked
// then, the client sees in the segment: a count that every removal raises.

const (
	// openOffers bounds the offered references that a client has open, openOfferBytes
	// what their messages take of its session's socket: less than the 208 KiB that
	// Linux gives one. So nobody waits for a client that does not read, and no session
	// ends for what was only offered.
	openOffers     = 2 * connector.MaxOffered
	openOfferBytes = 192 << 10
	// messageBytes is what the kernel takes for a message, besides twice its bytes.
	messageBytes = 1536
	// offerShare of the memory is the most that all of them may keep from eviction: a
	// chunk stays whole for one of its shards.
	offerShare = 1.0 / 8
	// offerLife is how long a client may keep what it does not use. Engines begin to
	// load within milliseconds, or wait for blocks.
	offerLife = time.Second
	// vainOffers in a row end the offers to an engine's follower until it asks.
	vainOffers = 4
	// queuedOffers is what may be on its way into a session's socket.
	queuedOffers = 16
	// maxFollowed bounds the engines that a client follows.
	maxFollowed = 1024
)

// follower is a client that loads for an engine.
type follower struct {
	client *client
	// session is the client's that follows: what is sent on another's reaches nobody.
	session uint64
	// shards are the first by group, held how many there are from each on.
	shards []int
	held   int
	offers chan<- *connector.Offer
	vain   int // offers in a row of which nothing was used
}

// offering is an offer as long as references of it are open.
type offering struct {
	to       *follower
	refs     int // of the whole offer
	open     int
	declined int
	bytes    int // that its message may take of a socket
}

// openedLocked notes a reference, which keeps so many bytes from eviction.
func (m *Master) openedLocked(o *offering, kept uint64) {
	if o.open++; o.open == 1 {
		o.to.client.offerBytes += o.bytes
	}
	o.to.client.offered++
	m.offeredBytes += kept
}

// closedLocked notes that a reference was given back.
func (m *Master) closedLocked(o *offering, kept uint64) {
	if o.open--; o.open == 0 {
		o.to.client.offerBytes -= o.bytes
	}
	o.to.client.offered--
	m.offeredBytes -= kept
}

// declinedLocked notes that a reference is given back unused.
func (m *Master) declinedLocked(o *offering) {
	if o.declined++; o.declined == 1 {
		m.stats.OffersDeclined++
	}
	if o.declined == o.refs {
		o.to.vain++
	}
}

// comeToSomething notes that the client loads for the engine. A nil follower does
// not.
func (f *follower) comeToSomething() {
	if f != nil {
		f.vain = 0
	}
}

// followers are those of every engine, by client.
type followers map[string]map[uint64]*follower

func (f followers) of(engine string, client uint64) *follower { return f[engine][client] }

func (f followers) remove(engine string, client uint64) {
	delete(f[engine], client)
	if len(f[engine]) == 0 {
		delete(f, engine)
	}
}

// follow begins to offer what an engine's lookups find, or ends it. A client that
// follows too many engines is offered nothing for another.
func (m *Master) follow(session Session, msg *connector.Follow, offers chan<- *connector.Offer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.sessionLocked(session)
	if err != nil {
		return err
	}
	if len(msg.ShardByGroup) == 0 {
		m.followers.remove(msg.Engine, c.id)
		return nil
	}
	followed := 0
	for engine, clients := range m.followers {
		if engine != msg.Engine && clients[c.id] != nil {
			followed++
		}
	}
	if followed >= maxFollowed {
		return nil
	}
	if m.followers[msg.Engine] == nil {
		m.followers[msg.Engine] = map[uint64]*follower{}
	}
	m.followers[msg.Engine][c.id] = &follower{client: c, session: session.Number, shards: msg.ShardByGroup, held: msg.HeldShards, offers: offers}
	return nil
}

// unfollow ends a session's offers. Nothing is sent to it afterwards.
func (m *Master) unfollow(client uint64, offers chan<- *connector.Offer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for engine := range m.followers {
		if f := m.followers.of(engine, client); f != nil && f.offers == offers {
			m.followers.remove(engine, client)
		}
	}
}

// offer offers what a lookup was granted, if that is all it wanted and all of it is
// in memory.
func (m *Master) offer(g *granting) {
	if len(g.below) > 0 {
		return
	}
	for _, client := range m.followersOf(g.holder.Engine) {
		m.offerTo(client, g)
		m.betweenSteps()
	}
}

// followersOf lists the clients that follow an engine.
func (m *Master) followersOf(engine string) []uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Keys(m.followers[engine]))
}

func (m *Master) offerTo(client uint64, g *granting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.followers.of(g.holder.Engine, client); f != nil && m.goesOnLocked(g) && len(g.lease.records) == len(g.chunks) {
		m.offerLocked(f, g)
	}
}

func (m *Master) offerLocked(f *follower, g *granting) {
	count := len(g.chunks) * f.held
	if f.client.number != f.session || f.vain >= vainOffers || count == 0 || count > connector.MaxOffered || f.client.offered+count > openOffers {
		return
	}
	made := &offering{to: f, refs: count, bytes: messageBytes + 2*(len(g.holder.Engine)+len(g.holder.Request)+count*connector.OfferedBytes)}
	if f.client.offerBytes+made.bytes > openOfferBytes {
		return
	}
	offer := &connector.Offer{
		Type: connector.TypeOffer, Engine: g.holder.Engine, Request: g.holder.Request,
		Namespace: uint32(g.ns), Generation: m.epochLocked(g.ns), Removals: m.removals().Load(), LifeMS: int(min(offerLife, g.lease.ttl).Milliseconds()),
		Items: make([]byte, 0, count*connector.OfferedBytes),
	}
	most := uint64(float64(uint64(m.seg.prepared())*m.seg.SlabBytes) * offerShare)
	for i := range g.chunks {
		chunk := &g.chunks[i]
		for k := range f.held {
			if int(chunk.Group) >= len(f.shards) {
				m.takeBackLocked(offer)
				return
			}
			item := store.GetItem{Group: chunk.Group, Hash: chunk.Hash, Shard: uint32(f.shards[chunk.Group] + k)}
			got, _ := m.referLocked(f.client, g.ns, &item, made)
			if got.Status == store.GetReady {
				offer.Items = connector.AppendOffered(offer.Items, &connector.Offered{
					Group: item.Group, Shard: item.Shard, Bytes: got.Place.Bytes, Checksum: got.Checksum, Ref: got.Ref, Offset: got.Place.Offset, Hash: item.Hash,
				})
			}
			if got.Status != store.GetReady || got.Tier != store.TierHost || m.offeredBytes > most {
				m.takeBackLocked(offer)
				return
			}
		}
	}
	select {
	case f.offers <- offer:
		m.stats.Offers++
	default:
		m.takeBackLocked(offer)
	}
}

// takeBackLocked gives back the references of an offer that was not made.
func (m *Master) takeBackLocked(offer *connector.Offer) {
	for i := range offer.Len() {
		ref := offer.At(i).Ref
		m.releaseLocked(ref, m.reads[ref])
	}
}

// decline gives back what a client was offered and has not used; unknown
// references are ignored.
func (m *Master) decline(session Session, refs []uint64) error {
	return m.inSteps(len(refs), func(from, to int) error {
		c, err := m.sessionLocked(session)
		if err != nil {
			return err
		}
		for _, ref := range refs[from:to] {
			r, ok := m.reads[ref]
			if !ok || r.client != c.id {
				continue
			}
			if r.offered != nil {
				m.declinedLocked(r.offered)
			}
			m.releaseLocked(ref, r)
		}
		return nil
	})
}

// removals is the count, in the segment's header, of what makes offers void.
func (m *Master) removals() *atomic.Uint64 { return &m.mem.Words()[hdrRemovals/8] }

// noteRemoval voids the offers that are open, unless they keep what goes from
// going. A reset has voided them before it drops its chunks.
func (m *Master) noteRemoval(why RemoveReason) {
	switch why {
	case RemovedCorrupt, RemovedByCommand:
		m.removals().Add(1)
	}
}

// Removals returns how often something has been removed from the segment in mem, a
// mapping of a running master's. An offer that says less is void.
func Removals(mem []byte) uint64 {
	return le.Uint64(mem[hdrRemovals:])
}
