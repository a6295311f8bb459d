package embedded

// validateBooks counts anew what is kept by owner, and who the policy may choose.
func (m *Master) validateBooks(t fataler, resident int) {
	books := newAccounts(maxNamespaces, maxTags)
	pinned, dated, kept := uint64(0), 0, 0
	for id := range m.fresh {
		l := &m.live[id]
		if l.state == Gone || l.state == Evicting {
			continue
		}
		r := m.seg.peekRecord(id)
		if r.expires != 0 {
			dated++
		}
		if r.flags&flagHardPin != 0 {
			pinned += m.groupOf(&r).wholeBytes()
			books.pin(ownerOf(&r), m.groupOf(&r).wholeBytes())
		}
		if l.state.Resident() {
			books.countChunk(ownerOf(&r), 1)
			if l.kept != (r.flags&flagHardPin != 0) {
				t.Fatalf("record %d: flags %b, kept from the policy: %v", id, r.flags, l.kept)
			}
			if l.kept || l.away {
				kept++
			}
			if mv := m.awayLocked(id); l.away != (mv != nil) {
				t.Fatalf("record %d: away %v, its move %v", id, l.away, mv)
			}
		}
		if hidden := m.faces.has(id, faceHidden); hidden != (l.state == Expired) {
			t.Fatalf("record %d is %v, hidden from lookups: %v", id, l.state, hidden)
		}
		for slot := r.slot; slot != noSlot; {
			e, _ := m.seg.readSlot(slot)
			books.takeSlot(ownerOf(&r), m.alloc.slotBytes(slot))
			slot = e.next
		}
	}
	for _, p := range m.puts {
		if !p.adopted && m.live[p.record].state != Evicting {
			books.takeSlot(m.ownerOfLocked(p.record), m.alloc.slotBytes(p.slot))
		}
	}
	check := func(what string, got, want []account) {
		for i := range got {
			g, w := got[i], want[i]
			if g.chunks != w.chunks || g.bytes != w.bytes || g.pinned != w.pinned {
				t.Fatalf("%s %d: the books say %+v, there are %+v", what, i, g, w)
			}
		}
	}
	check("namespace", m.books.namespaces, books.namespaces)
	check("salt tag", m.books.tags, books.tags)
	if pinned != m.pinned || int64(dated) != m.dated.Load() {
		t.Fatalf("%d bytes pinned and %d records dated, counted %d and %d", pinned, dated, m.pinned, m.dated.Load())
	}
	m.validateOrder(t)
	if m.policy.Len() != resident-kept {
		t.Fatalf("the policy has %d chunks of %d resident, %d of them pinned", m.policy.Len(), resident, kept)
	}
	used := uint64(0)
	for _, s := range m.alloc.slabs {
		used += uint64(s.used) * uint64(s.slotBytes)
	}
	if used != m.alloc.used {
		t.Fatalf("%d bytes of slots are in use, counted %d", used, m.alloc.used)
	}
}

// validateOrder looks whether each resident chunk is once in each of its lists.
func (m *Master) validateOrder(t fataler) {
	o := m.owned
	if o == nil {
		return
	}
	seen := [dimensions]map[uint32]bool{{}, {}}
	for d := range o.ends {
		for i, e := range o.ends[d] {
			before := nobody
			for rec := e.front; rec != nobody; rec = o.links[d][rec].toBack {
				r := m.seg.peekRecord(rec)
				number := [dimensions]uint16{r.namespace, r.saltTag}[d]
				if !o.listed.has(rec) || seen[d][rec] || o.links[d][rec].toFront != before || int(number)*pinClasses+int(pinOf(r.flags)) != i {
					t.Fatalf("record %d has no place in list %d of %d", rec, i, d)
				}
				seen[d][rec], before = true, rec
			}
			if e.back != before {
				t.Fatalf("list %d of %d ends at %d, its back is %d", i, d, before, e.back)
			}
		}
	}
	for id := range m.fresh {
		resident := m.live[id].state.Resident()
		tagged := resident && m.ownerOfLocked(id).tag != 0
		if resident != o.listed.has(id) || resident != seen[byNamespace][id] || tagged != seen[byTag][id] {
			t.Fatalf("record %d is %v; in its owners' lists: %v, %v", id, m.live[id].state, seen[byNamespace][id], seen[byTag][id])
		}
	}
}
