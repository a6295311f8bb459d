package evict

// run is a request's chunks, or as many of them as came one after the other.
//
// A store's client may bring a request's new chunks in several batches, with
// others' in between. So the leaf of a finished run is remembered for a while,
// and a run that begins behind it is taken for its continuation.
type run struct {
	ends   ends // in the order of arrival
	n      int
	last   uint32 // record that came last
	order  int8   // rootFirst, leafFirst, 0 while there is one chunk
	leaves [recentLeaves]leaf
	// mean is that of the chunks in a run, meanNew that of the new chunks in those
	// that have any; of the last meanRuns runs or so.
	mean, meanNew float64
}

const (
	rootFirst    = 1
	leafFirst    = -1
	recentLeaves = 256
	meanRuns     = 1000
)

// leaf is the deepest chunk of a finished run.
type leaf struct {
	tag    uint32 // of its key; 0 for none
	record uint32
	fresh  uint32 // new chunks of its run, 0 if it is none of them
	origin uint8  // of those
	uses   uint8
}

// tagOf is what is kept of another chunk's key: its low half.
func tagOf(key uint64) uint32 { return uint32(key) }

func newRun() run { return run{ends: ends{nobody, nobody}} }

// join adds a record that was just used to the run, or begins another one.
func (h *Hazard) join(record uint32) {
	r := &h.run
	if r.n > 0 {
		order := int8(0)
		switch {
		case h.records[record].parent != 0 && h.records[record].parent == tagOf(h.records[r.last].key):
			order = rootFirst
		case h.records[r.last].parent != 0 && h.records[r.last].parent == tagOf(h.records[record].key):
			order = leafFirst
		}
		if order == 0 || r.order != 0 && order != r.order {
			h.endRun()
		} else {
			r.order = order
		}
	}
	h.links.pushBack(&r.ends, record)
	r.last = record
	r.n++
}

// endRun sorts the run's chunks into their kinds and lists them, leaf first.
func (h *Hazard) endRun() {
	r := &h.run
	if r.n == 0 {
		return
	}
	leafmost, rootmost := r.ends.front, r.ends.back
	next := func(at uint32) uint32 { return h.links[at].toBack }
	if r.order == rootFirst {
		leafmost, rootmost = rootmost, leafmost
		next = func(at uint32) uint32 { return h.links[at].toFront }
	}
	fresh, origin := 0, originRoot
	at := leafmost
	for ; at != nobody && h.records[at].state&isFresh != 0; at = next(at) {
		fresh++
	}
	if at != nobody {
		origin = originBehind(h.records[at].uses)
	} else if before := h.leafBefore(rootmost); before != nil {
		origin = originBehind(before.uses)
		if before.fresh > 0 {
			origin = int(before.origin)
			fresh += int(before.fresh)
			h.untail(before, kindOfNew(origin, fresh, r.meanNew))
		}
	}
	r.measure(fresh)
	x := leaf{tag: tagOf(h.records[leafmost].key), record: leafmost, origin: uint8(origin), uses: h.records[leafmost].uses}
	if h.records[leafmost].state&isFresh != 0 {
		x.fresh = uint32(fresh)
	}
	r.leaves[x.tag%recentLeaves] = x
	r.ends, r.n, r.order = ends{nobody, nobody}, 0, 0
	ofNew, back := kindOfNew(origin, fresh, r.meanNew), false
	for at := leafmost; at != nobody; {
		following := next(at)
		if h.records[at].state&isFresh == 0 {
			back = true
		} else if back { // it was forgotten; what stood behind it was not
			h.records[at].uses, h.records[at].state = 1, 0
		}
		switch {
		case h.records[at].state&isFresh != 0 && at == leafmost:
			h.records[at].kind = kindTail
		case h.records[at].state&isFresh != 0:
			h.records[at].kind = uint8(ofNew)
		case h.records[at].uses > 0:
			h.records[at].kind = kindReused
		}
		h.records[at].state &^= isFresh
		h.learn.started(int(h.records[at].kind), h.clock.slot)
		h.records[at].lastSlot = h.clock.slot
		h.list(at)
		at = following
	}
}

// measure adds the run, which is over, to the means.
func (r *run) measure(fresh int) {
	if r.mean == 0 {
		r.mean, r.meanNew = float64(r.n), float64(max(fresh, 1))
	}
	r.mean += (float64(r.n) - r.mean) / meanRuns
	if fresh > 0 {
		r.meanNew += (float64(fresh) - r.meanNew) / meanRuns
	}
}

// leafBefore returns the leaf of an earlier run that the record stands behind,
// or nil.
func (h *Hazard) leafBefore(record uint32) *leaf {
	tag := h.records[record].parent
	x := &h.run.leaves[tag%recentLeaves]
	if tag == 0 || x.tag != tag {
		return nil
	}
	return x
}

// untail makes a leaf that was taken for a request's end what it is.
func (h *Hazard) untail(x *leaf, kind int) {
	r := x.record
	if tagOf(h.records[r].key) != x.tag || h.records[r].state&isListed == 0 || h.records[r].kind != kindTail || h.records[r].lastSlot != h.clock.slot {
		return
	}
	h.unlist(r)
	h.learn.undo(kindTail, h.clock.slot)
	h.records[r].kind = uint8(kind)
	h.learn.started(kind, h.clock.slot)
	h.list(r)
}

// list puts a record of a known kind into its class's lists.
func (h *Hazard) list(record uint32) {
	h.records[record].state |= isListed
	h.records[record].state &^= isUnsorted
	if h.recency {
		h.records[record].state |= isUnsorted
	}
	h.lists[h.records[record].class].push(h.links, record, h.listKind(record), h.records[record].lastSlot, h.clock.slot)
}

// unlist takes it out again.
func (h *Hazard) unlist(record uint32) {
	h.lists[h.records[record].class].unlink(h.links, record, h.listKind(record), h.records[record].lastSlot, h.clock.slot)
	h.records[record].state &^= isListed
}

func (h *Hazard) listKind(record uint32) int {
	if h.records[record].state&isUnsorted != 0 {
		return kindUnsorted
	}
	return int(h.records[record].kind)
}
