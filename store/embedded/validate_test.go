package embedded

import (
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/store"
)

// fataler is what testing.TB and rapid.T share.
type fataler interface {
	Fatalf(format string, args ...any)
}

// validate walks everything that must agree: records, index, policies, slots,
// slabs, reads and puts.
func (m *Master) validate(t fataler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	used := map[uint32]string{}
	take := func(slot uint32, who string) {
		if prior, twice := used[slot]; twice {
			t.Fatalf("slot %d belongs to %s and to %s", slot, prior, who)
		}
		used[slot] = who
	}
	resident, active := 0, 0
	for id := range m.fresh {
		l := m.live[id]
		if l.state == Gone {
			continue
		}
		if l.state == Evicting {
			if !l.inUse() {
				t.Fatalf("record %d is void and known to nobody", id)
			}
			continue
		}
		r := m.seg.peekRecord(id)
		if got, ok := m.findLocked(store.NamespaceID(r.namespace), uint32(r.group), &r.hash); (!ok || got != id) && !m.staleLocked(id) {
			t.Fatalf("record %d is not in the index (%d, %v)", id, got, ok)
		}
		if l.state == Creating {
			continue
		}
		if m.staleLocked(id) && m.stale.left == 0 {
			t.Fatalf("record %d was reset, and nobody drops it", id)
		}
		resident++
		if l.state.Whole() {
			active++
		}
		if _, ok := m.seg.readRecord(id); !ok {
			t.Fatalf("record %d is not valid in the segment", id)
		}
		shards := uint64(0)
		for slot := r.slot; slot != noSlot; {
			e, ok := m.seg.readSlot(slot)
			if owner, found := m.seg.ownerOf(slot); !ok || !found || owner != id {
				t.Fatalf("record %d: slot %d is not its own", id, slot)
			}
			take(slot, "a record")
			shards |= 1 << e.shard
			slot = e.next
		}
		if bits.OnesCount64(shards) != int(l.shards) {
			t.Fatalf("record %d: slots hold shards %#x, counted are %d", id, shards, l.shards)
		}
	}
	for slot := range m.doomed {
		take(slot, "a reader")
		if m.pins[slot] == 0 {
			t.Fatalf("doomed slot %d is not read", slot)
		}
	}
	arriving := 0
	for _, p := range m.puts {
		take(p.slot, "a put")
		if !p.adopted {
			arriving++
			if _, ok := m.arriving[p.arrivalKey()]; !ok {
				t.Fatalf("shard %d of record %d has a put and does not arrive", p.shard, p.record)
			}
		}
	}
	if arriving != len(m.arriving) {
		t.Fatalf("%d shards arrive, %d puts bring them", len(m.arriving), arriving)
	}
	inSlabs := uint32(0)
	for _, s := range m.alloc.slabs {
		inSlabs += s.used
	}
	if int(inSlabs) != len(used) {
		t.Fatalf("%d slots are allocated, %d are owned", inSlabs, len(used))
	}
	if m.stats.Chunks != active {
		t.Fatalf("%d chunks are counted, %d are active", m.stats.Chunks, active)
	}
	m.alloc.validateHomes(t)
	m.validateBooks(t, resident)
}
