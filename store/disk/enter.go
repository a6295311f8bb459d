package disk

// INVARIANT: once the file was looked through, a record on the disk is in the
// catalog, or void (see removals), or expired. So a removal that goes by what the
// catalog knows misses nothing.

// enterLocked makes a record known. False: there is no room for it in the
// catalog, and its region may be void.
func (t *Tier) enterLocked(h *recordHeader, p place) bool {
	key := keyOf(&h.Key)
	if old, known := t.catalog.find(key); known {
		t.removeLocked(old) // void
	}
	for t.catalog.full() {
		if !t.giveUpRegionLocked(p.region) {
			return false
		}
	}
	space, ok := t.spaces.take(h.Namespace)
	if !ok {
		return false
	}
	tag, ok := t.tags.take(h.Tag)
	if !ok {
		t.spaces.drop(space)
		return false
	}
	r := &t.log.regions[p.region]
	r.first = t.insertLocked(&entry{
		key: key, region: p.region, page: p.page, pages: p.pages, behind: r.first,
		expires: h.Expires, birth: uint32(h.birth), parent: parentOf(&h.Chunk), tail: le.Uint64(h.Hash[24:]),
		group: h.Group, space: space, tag: tag,
	})
	return true
}

// giveUpRegionLocked forgets the region that would be filled next, other than one.
func (t *Tier) giveUpRegionLocked(other uint32) bool {
	id, ok := t.log.policy.Victim(func(id uint32) bool { return t.log.regions[id].readers > 0 || id == other })
	if ok {
		t.dropRegionLocked(id)
		t.log.idle = append(t.log.idle, id)
	}
	return ok
}

// refuseNameLocked refuses a chunk of a namespace or tag for which there is no
// number. Regions are given up as if such chunks were written, so that those in use
// in old chunks only become free.
func (t *Tier) refuseNameLocked(c *Chunk) {
	t.stats.Refused[RefusedName]++
	if t.namelessBytes += uint64(c.pages()) * PageBytes; t.namelessBytes >= t.regionBytes {
		t.namelessBytes = 0
		t.giveUpRegionLocked(noRegion)
	}
}

// dropRegionLocked forgets the chunks of a region. Its records are void until it
// is begun anew.
func (t *Tier) dropRegionLocked(id uint32) {
	t.removed.voidRegion(id)
	r := &t.log.regions[id]
	for e := r.first; e != nothing; {
		entry := &t.catalog.entries[e]
		next := entry.behind
		if !entry.removed {
			t.removeLocked(e)
			t.stats.Evicted++
		}
		t.spaces.drop(entry.space)
		t.tags.drop(entry.tag)
		t.catalog.release(e)
		e = next
	}
	r.first = nothing
}

// beginRegionLocked opens a region whose header is written.
func (t *Tier) beginRegionLocked(id uint32, sequence uint64) {
	t.log.begin(id, sequence)
	t.unsynced = true
	t.poke()
	if t.removed.begun(id) {
		t.changedLocked(true)
	}
}
