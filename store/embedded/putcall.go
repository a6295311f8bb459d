package embedded

import (
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// PutOptions say whose the chunks of a put are, and how long they stay.
type PutOptions struct {
	// SaltTag is the label of the tenant, empty for none.
	SaltTag string
	// TTL is how long the chunks live; 0: as long as the namespace's do.
	TTL time.Duration
	// Pin pins the chunks as they are stored, until TTL has passed.
	Pin PinKind
	// Node is the NUMA node next to which the writer works, nil when that is not
	// known: then its chunks are spread evenly.
	Node *int
}

// check reports what of the options can't be.
func (o *PutOptions) check() error {
	if o.Pin > PinHard {
		return fmt.Errorf("%w: pin kind %d", ErrOption, o.Pin)
	}
	return checkTTL(o.TTL)
}

// putCall is what the items of a PutStart have in common.
type putCall struct {
	client    *client
	near      int // home
	namespace store.NamespaceID
	owner     owner
	ttl       time.Duration
	flags     recordFlags
	// full has the slot sizes that this call found no room for: nothing frees any
	// under the lock, and looking is slow. overQuota is the same for the quota.
	full, overQuota map[uint32]bool
	forQuotas       quotaWork
	// refused, if not nil, counts puts that the store does not take at present.
	refused *uint64
}

func (m *Master) putCallLocked(c *client, id store.NamespaceID, opts *PutOptions) *putCall {
	m.timeLocked()
	call := &putCall{
		client: c, near: m.nearLocked(opts.Node), namespace: id, owner: owner{namespace: uint16(id)}, ttl: opts.TTL, flags: pinFlags[opts.Pin],
		full: map[uint32]bool{}, overQuota: map[uint32]bool{}, forQuotas: newQuotaWork(),
	}
	if call.ttl == 0 && opts.Pin == PinNone {
		call.ttl = time.Duration(m.seg.namespaceTTL(int(id))) * time.Second
	}
	var err error
	switch call.owner.tag, err = m.tagLocked(opts.SaltTag); {
	case err != nil:
		// Stored without its tag it could not be removed by it.
		call.refused = &m.stats.PutsUntagged
	case m.draining:
		call.refused = &m.stats.PutsDraining
	case len(m.undeclared) > 0:
		call.refused = &m.stats.PutsRefused
	}
	return call
}

// roomLocked finds a slot for a put, or says why there is none. What was refused
// to a known chunk tells less than for another: it was spared in the search.
func (m *Master) roomLocked(call *putCall, o owner, g *groupInfo, known bool) (slot uint32, refusal store.PutStatus) {
	if call.overQuota[g.slotBytes] || !m.makeRoomLocked(call, o, g.slotBytes) {
		call.overQuota[g.slotBytes] = !known
		m.books.refuse(o, g.slotBytes)
		m.stats.PutsOverQuota++
		return 0, store.PutRefused
	}
	if !call.full[g.slotBytes] {
		var ok bool
		if slot, ok = m.slotLocked(g.slotBytes, call.near); ok {
			return slot, 0
		}
		call.full[g.slotBytes] = !known
	}
	m.stats.PutsNoSpace++
	return 0, store.PutNoSpace
}
