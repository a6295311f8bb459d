package embedded

import "slices"

// NodeRoom is what a store may use of a NUMA node's memory.
type NodeRoom struct {
	Node  int
	Bytes uint64
}

// Binder is a Memory that can have its pages on a NUMA node.
type Binder interface {
	// Bind asks for the pages of [offset, offset+n) on the node from now on, for
	// everybody who maps the file. Those that are there already stay where they are.
	Bind(offset, n uint64, node int) error
}

// unbound is the node of slabs that are bound to none.
const unbound = -1

// spread divides slabs between nodes: evenly, as far as each has room. A node
// that would get less than the longest run gets none.
func spread(l *Layout, rooms []NodeRoom) []uint32 {
	shares := make([]uint32, len(rooms))
	out := make([]bool, len(rooms))
	for {
		clear(shares)
		for range l.Slabs {
			shares[nextShare(l, rooms, shares, out)]++
		}
		left := false
		for i, n := range shares {
			if !out[i] && n < l.longestRun() {
				out[i], left = true, true
				break // the others may get more now
			}
		}
		if !left {
			return shares
		}
	}
}

// nextShare picks who gets one slab more: who has least of those with room, or of
// all when none has any.
func nextShare(l *Layout, rooms []NodeRoom, shares []uint32, out []bool) int {
	best, bestFits := -1, false
	for i := range rooms {
		if out[i] {
			continue
		}
		fits := (uint64(shares[i])+1)*l.SlabBytes <= rooms[i].Bytes
		if best < 0 || fits && !bestFits || fits == bestFits && shares[i] < shares[best] {
			best, bestFits = i, fits
		}
	}
	return best
}

// stripeSlabs are bound to a node at a time, and then as many to the next: memory
// is allocated from the first slab to the last, so that some of all nodes comes
// early. Runs of every length fit in without a rest.
const stripeSlabs = 12

// bindSlabs divides the slabs of a new segment between the nodes, in stripes, and
// notes it in the slab table. What can't be bound is bound to no node.
func bindSlabs(seg *segment, mem Memory, opts *Options) {
	switch len(opts.Nodes) {
	case 0:
		return
	case 1: // there is no other memory
		for id := range seg.Slabs {
			seg.setSlabNode(id, opts.Nodes[0].Node)
		}
		return
	}
	binder, can := mem.(Binder)
	if !can {
		return
	}
	left := spread(&seg.Layout, opts.Nodes)
	for i, n := range left {
		if n == 0 {
			opts.Log.Info("a NUMA node has too little free memory for a part of the store", "node", opts.Nodes[i].Node, "free_bytes", opts.Nodes[i].Bytes)
		}
	}
	for first := uint32(0); first < seg.Slabs; {
		for i := range left {
			n := min(left[i], stripeSlabs)
			if n == 0 {
				continue
			}
			node := opts.Nodes[i].Node
			if err := binder.Bind(seg.SlabOffset(first), uint64(n)*seg.SlabBytes, node); err != nil {
				// The others would be refused too. What was bound stays so.
				opts.Log.Warn("the store's memory is not bound to NUMA nodes; it works, with slower copies on machines of several. "+
					"In a container, allow mbind (CAP_SYS_NICE, or a seccomp profile), or set numa: off", "node", node, "error", err)
				return
			}
			for id := first; id < first+n; id++ {
				seg.setSlabNode(id, node)
			}
			first += n
			left[i] -= n
		}
	}
	opts.Log.Info("the store is divided between NUMA nodes", "nodes", len(opts.Nodes))
}

// homesOf reads which nodes the slabs of a segment are on: the nodes by home, and
// each slab's home. What names more nodes than a store has is on none.
func homesOf(seg *segment) (nodes []int, homeOf []uint8) {
	homeOf = make([]uint8, seg.Slabs)
	for id := range homeOf {
		node, bound := seg.slabNode(uint32(id))
		if !bound || len(nodes) >= maxHomes-1 && !slices.Contains(nodes, node) {
			node = unbound
		}
		at := slices.Index(nodes, node)
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, node)
		}
		homeOf[id] = uint8(at)
	}
	return nodes, homeOf
}

// checkNodes says where an adopted segment has memory that the nodes of today do
// not. Its bytes are somewhere all the same, and workers elsewhere use them.
func (m *Master) checkNodes() {
	for _, node := range m.nodes {
		if node != unbound && !slices.ContainsFunc(m.opts.Nodes, func(r NodeRoom) bool { return r.Node == node }) {
			m.opts.Log.Info("the adopted store has a part on a NUMA node that is not in use now", "node", node)
		}
	}
}

// nearLocked is the home next to a node: any, when the store has no memory there
// or is not to care.
func (m *Master) nearLocked(node *int) int {
	if node == nil || len(m.opts.Nodes) == 0 {
		return anyHome
	}
	return slices.Index(m.nodes, *node) // -1 is anyHome
}

// NodeStats is the data area on one NUMA node.
type NodeStats struct {
	Node          int // -1: bound to none
	SizeBytes     uint64
	CapacityBytes uint64 // the part of it that is allocated
	UsedBytes     uint64 // slots in use
}

func (m *Master) nodeStatsLocked() []NodeStats {
	stats := make([]NodeStats, len(m.nodes))
	for i, node := range m.nodes {
		h := &m.alloc.homes[i]
		stats[i] = NodeStats{Node: node, CapacityBytes: uint64(h.ready) * m.seg.SlabBytes, UsedBytes: h.used}
	}
	for i := range m.alloc.slabs {
		stats[m.alloc.slabs[i].home].SizeBytes += m.seg.SlabBytes
	}
	slices.SortFunc(stats, func(a, b NodeStats) int { return a.Node - b.Node })
	return stats
}
