package embedded

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Memory goes to the slot size that makes the most of it. A size that finds no
// slot first drops its own next victim; what tells that it should have more is
// the age at which it has to drop: when another size has a run of slabs whose
// chunks nobody has used for much longer, it takes that run. What such a run
// costs is counted by the same measure, how long ago its chunks were used.

const (
	// worthMoving: slabs change hands when their chunks are worth less than what
	// the size drops by this factor. Nearer together they would go to and fro.
	worthMoving = 1.25
	// heatSamples bounds how many chunks of a run are looked at for its cost.
	heatSamples = 16
	// rowsAtOnce bounds how many rows change hands at a time.
	rowsAtOnce = 4
	// diskWorth: what is on the disk too costs only its reading again.
	diskWorth = 8
	// tries bounds how many runs are tried that turn out to be in use.
	tries = 16
	// leastAge is what counts as just used.
	leastAge = useTick
)

// donor is a row of slabs that could change hands.
type donor struct {
	first uint32
	// heat is bytes by seconds since their last use, summed up, for each slab that
	// comes free with the row.
	heat float64
}

// balanceLocked notes that a size had to drop a chunk of that age. When it has
// turned over a run's worth it is seen whether it should have more.
func (m *Master) balanceLocked(slotBytes uint32, near int, dropped time.Duration) {
	c := m.alloc.class(slotBytes)
	c.turned += uint64(slotBytes)
	if c.evicted == 0 {
		c.evicted = dropped
	}
	c.evicted += (dropped - c.evicted) / 8
	if c.turned < uint64(c.run)*m.seg.SlabBytes {
		return
	}
	c.turned = 0
	donors := m.donorsLocked(c, near)
	mine := float64(m.seg.SlabBytes) / max(c.evicted, leastAge).Seconds()
	for range rowsAtOnce {
		if len(donors) == 0 || m.demoteRowLocked(donors[0].first, c.run) {
			return
		}
		// Looked at again: chunks of the rows before may have moved there.
		if d, ok := m.donorLocked(c, near, donors[0].first, map[uint32]float64{}); !ok || d.heat*worthMoving >= mine {
			return
		}
		donors = m.takeRunLocked(c, donors)
	}
}

// takeSlabLocked frees a run of slabs for a size that has nothing to drop.
func (m *Master) takeSlabLocked(slotBytes uint32, near int) bool {
	c, before := m.alloc.class(slotBytes), m.stats.SlabsTaken
	m.takeRunLocked(c, m.donorsLocked(c, near))
	return m.stats.SlabsTaken > before
}

// takeRunLocked frees the first of the rows that is not in use, and returns those
// behind it.
func (m *Master) takeRunLocked(c *sizeClass, donors []donor) []donor {
	for i, d := range donors {
		if i == tries {
			break
		}
		if m.emptyRowLocked(d.first, c.run) {
			m.stats.SlabsTaken++
			return donors[i+1:]
		}
	}
	return nil
}

// donorsLocked returns the rows of slabs that the class could have, what costs
// least first; a row that is not near costs more. A row may have free slabs in it,
// and the ends of longer runs.
func (m *Master) donorsLocked(c *sizeClass, near int) []donor {
	if !m.alloc.othersHaveSlabs(c) {
		return nil // as in most stores; it is asked for each slab that turns over
	}
	heats := map[uint32]float64{}
	var donors []donor
	prepared := m.seg.prepared()
	for first := uint32(0); first+c.run <= prepared; first++ {
		if d, ok := m.donorLocked(c, near, first, heats); ok {
			donors = append(donors, d)
		}
	}
	slices.SortFunc(donors, func(a, b donor) int {
		return cmp.Or(cmp.Compare(a.heat, b.heat), cmp.Compare(a.first, b.first))
	})
	return donors
}

// donorLocked says what a row of slabs would cost. heats has what is known of
// runs.
func (m *Master) donorLocked(c *sizeClass, near int, first uint32, heats map[uint32]float64) (donor, bool) {
	if !m.alloc.sameHome(first, c.run) {
		return donor{}, false
	}
	heat, slabs := 0.0, uint32(0)
	for _, id := range m.alloc.runsIn(first, c.run) {
		of := m.alloc.slabs[id].slotBytes
		if of == c.slotBytes {
			return donor{}, false
		}
		if _, known := heats[id]; !known {
			heats[id] = m.heatLocked(id, max(c.evicted/2, leastAge))
		}
		heat += heats[id]
		slabs += m.alloc.classes[of].run
	}
	if near != anyHome && int(m.alloc.slabs[first].home) != near {
		heat *= worthMoving
	}
	return donor{first, heat / float64(max(slabs, c.run))}, !math.IsInf(heat, 1)
}

// runsIn returns the first slabs of the runs that reach into a row of slabs.
func (a *slabAllocator) runsIn(first, slabs uint32) (runs []uint32) {
	for a.slabs[first].behind {
		slabs++
		first--
	}
	for id := first; id < first+slabs; id++ {
		if a.slabs[id].slotBytes != 0 {
			runs = append(runs, id)
		}
	}
	return runs
}

// heatLocked estimates what taking a run from its chunks would cost; infinite for
// a run of which one was seen that is in use. Chunks of less than the young age
// count as of that: a few of them will be moved, unless this is all that their
// size has.
func (m *Master) heatLocked(id uint32, young time.Duration) float64 {
	s := &m.alloc.slabs[id]
	if c := m.alloc.classes[s.slotBytes]; c.slabs == int(c.run) {
		young = leastAge
	}
	seen, heat := uint32(0), 0.0
	step := max(s.slots/heatSamples, 1)
	for i := uint32(0); i < s.slots; i += step {
		slot := id*m.seg.SlotsPerSlab + i
		rec, ok := m.seg.ownerOf(slot)
		if !ok {
			continue
		}
		if !m.movableLocked(rec, slot) {
			return math.Inf(1)
		}
		seen++
		worth := float64(s.slotBytes) / max(age(m.clock.elapsed, m.lastUse[rec]), young).Seconds()
		if m.belowTooLocked(rec) {
			worth /= diskWorth
		}
		heat += worth
	}
	if seen == 0 {
		return float64(s.used) * float64(s.slotBytes) // nothing is known of them
	}
	return heat * float64(s.used) / float64(seen)
}

// movableLocked tells whether nobody would notice that a slot's bytes are
// elsewhere, or gone: neither readers nor writers, nor a lease or a pin.
func (m *Master) movableLocked(rec, slot uint32) bool {
	l := &m.live[rec]
	return !l.inUse() && !l.kept && m.pins[slot] == 0
}

// emptyRowLocked frees a row of slabs: what was used last moves to where colder
// chunks are, the rest is dropped. False: something is in use, and nothing was
// done.
func (m *Master) emptyRowLocked(first, slabs uint32) bool {
	runs := m.alloc.runsIn(first, slabs)
	for _, id := range runs {
		if !m.idleRunLocked(id) {
			return false
		}
	}
	budget := moveAtOnce
	for _, id := range runs {
		budget = m.vacateLocked(id, budget, true)
	}
	return true
}

// idleRunLocked tells whether every slot in use belongs to a chunk that can go.
func (m *Master) idleRunLocked(id uint32) bool {
	s := &m.alloc.slabs[id]
	idle := uint32(0)
	for i := range s.slots {
		slot := id*m.seg.SlotsPerSlab + i
		if rec, ok := m.seg.ownerOf(slot); ok {
			if !m.movableLocked(rec, slot) {
				return false
			}
			idle++
		}
	}
	return idle == s.used // the rest has an open put, or a reader of a dropped chunk
}

// demoteRowLocked hands to the disk, if there is one, what it does not have of a
// row of slabs, and tells whether it takes any of it: then the row is worth
// little the next time that somebody asks.
func (m *Master) demoteRowLocked(first, slabs uint32) bool {
	if m.down() == nil {
		return false
	}
	begun := false
	for _, id := range m.alloc.runsIn(first, slabs) {
		slots, _ := m.slotsByUseLocked(id)
		for _, slot := range slots {
			rec, ok := m.seg.ownerOf(slot)
			if !ok || m.live[rec].state != Active || !m.movableLocked(rec, slot) || m.belowTooLocked(rec) {
				continue
			}
			if r := m.seg.peekRecord(rec); m.lower.down.CanDemote(m.groupOf(&r).wholeBytes()) {
				m.leavePolicyLocked(rec)
				m.demoteLocked(rec)
				begun = true
			}
		}
	}
	return begun
}

// belowTooLocked tells whether the tier that chunks go down to has one already.
func (m *Master) belowTooLocked(rec uint32) bool {
	if m.down() == nil {
		return false
	}
	r := m.seg.peekRecord(rec)
	key := m.diskKeyOf(&r)
	_, there := m.lower.down.Look(&key)
	return there
}
