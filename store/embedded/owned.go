package embedded

// An owner that is over its quota pays with its own chunks. The policy's order is
// the whole store's: to find one owner's next in it, the others' would have to be
// passed over. So each owner has a list of its chunks, and its hand goes round as
// a clock's does: what was used since it last came by is spared once. A chunk
// stands before its predecessor in the chain, so that what is left of a chain is
// its beginning.

// dimensions of owners: a chunk is in the list of its namespace, and in that of
// its tag if it has one.
const (
	byNamespace = iota
	byTag
	dimensions
)

// pinClasses are PinNone, PinSoft, PinHard: each has a list of its own.
const pinClasses = 3

// nobody is no record.
const nobody = noRecord

type ownedLink struct{ toBack, toFront uint32 }

type ownedEnds struct{ front, back uint32 }

// ownerOrder are the lists. Nil, it is none: they take 16 bytes a record, which a
// store without quotas is spared.
//
// INVARIANT: once it is complete, the resident chunks are in it, each in the lists
// of its owners and its pin.
type ownerOrder struct {
	links [dimensions][]ownedLink
	ends  [dimensions][]ownedEnds // by owner's number and pin
	// listed and used have a bit a record.
	listed, used bitmap
}

type bitmap []uint64

func (b bitmap) has(i uint32) bool { return b[i/64]>>(i%64)&1 == 1 }
func (b bitmap) set(i uint32)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) clear(i uint32)    { b[i/64] &^= 1 << (i % 64) }

func newOwnerOrder(records int) *ownerOrder {
	o := &ownerOrder{listed: make(bitmap, (records+63)/64), used: make(bitmap, (records+63)/64)}
	for d, owners := range [dimensions]int{byNamespace: maxNamespaces, byTag: maxTags} {
		o.links[d] = make([]ownedLink, records)
		o.ends[d] = make([]ownedEnds, owners*pinClasses)
		for i := range o.ends[d] {
			o.ends[d][i] = ownedEnds{nobody, nobody}
		}
	}
	return o
}

// pinOf is the pin's part in a list's number.
func pinOf(flags recordFlags) PinKind {
	switch {
	case flags&flagHardPin != 0:
		return PinHard
	case flags&flagSoftPin != 0:
		return PinSoft
	}
	return PinNone
}

func (o *ownerOrder) list(dimension int, number uint16, pin PinKind) *ownedEnds {
	return &o.ends[dimension][int(number)*pinClasses+int(pin)]
}

// use notes a use of a chunk.
func (o *ownerOrder) use(rec uint32) {
	if o != nil {
		o.used.set(rec)
	}
}

// insert lists a chunk, in each list before its predecessor if that is in the
// same, else as the last one.
func (o *ownerOrder) insert(rec uint32, r *record, parent uint32, p *record) {
	o.listed.set(rec)
	o.used.set(rec)
	pin := pinOf(r.flags)
	together := parent != nobody && o.listed.has(parent) && pinOf(p.flags) == pin
	for d, number := range [dimensions]uint16{byNamespace: r.namespace, byTag: r.saltTag} {
		switch {
		case d == byTag && number == 0:
		case together && (d == byNamespace || p.saltTag == number):
			o.put(d, o.list(d, number, pin), rec, parent)
		default:
			o.put(d, o.list(d, number, pin), rec, nobody)
		}
	}
}

// remove takes a chunk out of its lists. r is what it was inserted as.
func (o *ownerOrder) remove(rec uint32, r *record) {
	if !o.listed.has(rec) {
		return
	}
	o.listed.clear(rec)
	pin := pinOf(r.flags)
	o.take(byNamespace, o.list(byNamespace, r.namespace, pin), rec)
	if r.saltTag != 0 {
		o.take(byTag, o.list(byTag, r.saltTag, pin), rec)
	}
}

// put puts a record before another one, or behind all.
func (o *ownerOrder) put(d int, e *ownedEnds, rec, before uint32) {
	l := o.links[d]
	behind := e.back // the one that rec comes behind
	if before != nobody {
		behind = l[before].toFront
	}
	l[rec] = ownedLink{toBack: before, toFront: behind}
	if behind != nobody {
		l[behind].toBack = rec
	} else {
		e.front = rec
	}
	if before != nobody {
		l[before].toFront = rec
	} else {
		e.back = rec
	}
}

func (o *ownerOrder) take(d int, e *ownedEnds, rec uint32) {
	l := o.links[d]
	x := l[rec]
	if x.toFront != nobody {
		l[x.toFront].toBack = x.toBack
	} else {
		e.front = x.toBack
	}
	if x.toBack != nobody {
		l[x.toBack].toFront = x.toFront
	} else {
		e.back = x.toFront
	}
}

// ownedLooks bounds how many chunks of a list are looked at for a victim that was
// not used. A list goes on where it was left.
const ownedLooks = 64

// next returns the next chunk of a list to go, of those that may; it stays in its
// lists. Where all that are looked at were used, that is the first of them. While
// none may, it looks at more, as long as there is patience.
func (o *ownerOrder) next(dimension int, number uint16, pin PinKind, patience *int, may func(rec uint32) bool) (uint32, bool) {
	e, first := o.list(dimension, number, pin), nobody
	begin := e.front
	for looked := 0; e.front != nobody; looked++ {
		rec := e.front
		if looked > 0 && rec == begin {
			break // all the way round
		}
		if looked >= ownedLooks {
			if first != nobody || *patience == 0 {
				break
			}
			*patience--
		}
		if may(rec) && !o.used.has(rec) {
			return rec, true
		}
		if may(rec) && first == nobody {
			first = rec
		}
		o.used.clear(rec)
		o.take(dimension, e, rec)
		o.put(dimension, e, rec, nobody)
	}
	return first, first != nobody
}

// enterOrderLocked lists a chunk that has become resident. What a put calls its
// predecessor need not be one: it may be the chunk itself, or another namespace's.
func (m *Master) enterOrderLocked(rec uint32, r *record) {
	if m.owned == nil {
		return
	}
	var before record
	parent := nobody
	if r.parent != 0 {
		if at, ok := m.table.Find(r.parent, func(id uint32) bool { return m.keyOfLocked(id) == r.parent && !m.staleLocked(id) }); ok {
			if p := m.seg.peekRecord(at); at != rec && p.namespace == r.namespace {
				parent, before = at, p
			}
		}
	}
	m.owned.insert(rec, r, parent, &before)
}

func (m *Master) leaveOrderLocked(rec uint32, r *record) {
	if m.owned != nil {
		m.owned.remove(rec, r)
	}
}

// orderStep is how many records are listed at a time when the first quota is set.
const orderStep = 1024

// orderOwners makes the lists, if there are none.
func (m *Master) orderOwners() {
	m.mu.RLock()
	there, records := m.owned != nil, int(m.seg.Records)
	m.mu.RUnlock()
	if there {
		return
	}
	fresh := newOwnerOrder(records)
	for at, more := uint32(0), true; more; at += m.opts.steps.order {
		m.betweenSteps()
		more = m.orderSome(fresh, at)
	}
}

func (m *Master) orderSome(fresh *ownerOrder, at uint32) (more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owned == nil {
		m.owned = fresh
	}
	if m.owned != fresh {
		return false // somebody else was quicker
	}
	end := min(at+m.opts.steps.order, m.fresh)
	m.listOwnedLocked(at, end)
	return end < m.fresh
}

// listOwnedLocked lists what is not listed of a range of records.
func (m *Master) listOwnedLocked(from, to uint32) {
	for rec := from; rec < to; rec++ {
		if m.live[rec].state.Resident() && !m.owned.listed.has(rec) {
			r := m.seg.peekRecord(rec)
			m.enterOrderLocked(rec, &r)
		}
	}
}

// adoptOrderLocked makes the lists of a master that takes over a store with
// quotas. One may have been lowered just before.
func (m *Master) adoptOrderLocked() {
	if m.books.quotas() {
		m.owned, m.quotaSet = newOwnerOrder(int(m.seg.Records)), true
		m.listOwnedLocked(0, m.fresh)
	}
}
