package evict

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is the naive version of a policy: resident records in any form.
type model interface {
	insert(r uint32, c Chunk)
	touch(r uint32)
	remove(r uint32)
	// victim is the next to go among those that may, or false.
	victim(may func(r uint32) bool) (uint32, bool)
}

// TestAgainstModels runs random calls on every policy that has a definition short
// enough to be written down a second time.
func TestAgainstModels(t *testing.T) {
	for name, makeModel := range map[string]func() model{
		NameLRU:   func() model { return &listModel{moveOnTouch: true} },
		NameFIFO:  func() model { return &listModel{} },
		NameLFU:   func() model { return &countModel{chunks: map[uint32]*counted{}} },
		NameSIEVE: func() model { return newSieveModel() },
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { compare(t, name, makeModel()) })
		})
	}
}

const testRecords = 16

// compare drives a policy and a model with the same calls.
func compare(t *rapid.T, name string, m model) {
	p, err := New(name, testRecords)
	if err != nil {
		t.Fatal(err)
	}
	classes := rapid.SampledFrom([]int{1, 1, 3}).Draw(t, "classes")
	resident := map[uint32]uint8{} // class
	busy := map[uint32]bool{}
	for range rapid.IntRange(1, 300).Draw(t, "steps") {
		r := uint32(rapid.IntRange(0, testRecords-1).Draw(t, "record"))
		_, here := resident[r]
		switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
		case op < 4 && !here:
			c := Chunk{Key: uint64(r) + 1, Class: uint8(rapid.IntRange(0, classes-1).Draw(t, "class")) * 31}
			p.Insert(r, c)
			m.insert(r, c)
			resident[r] = c.Class
		case op < 4:
			p.Touch(r)
			m.touch(r)
		case op == 4 && here:
			p.Remove(r)
			m.remove(r)
			delete(resident, r)
		case op == 5:
			busy[r] = !busy[r]
		case op > 5:
			of := allClasses
			if op > 7 {
				of = 1 << (31 * rapid.IntRange(0, classes-1).Draw(t, "of"))
			}
			want, wantOK := m.victim(func(r uint32) bool { return !busy[r] && of>>resident[r]&1 == 1 })
			got, ok := p.VictimOf(of, func(r uint32) bool { return busy[r] })
			if ok != wantOK || ok && got != want {
				t.Fatalf("VictimOf(%#x) = %d, %v; want %d, %v", of, got, ok, want, wantOK)
			}
			if ok {
				delete(resident, got)
			}
		}
		if p.Len() != len(resident) {
			t.Fatalf("Len() = %d, want %d", p.Len(), len(resident))
		}
	}
}

// listModel is LRU or FIFO: a list, the next to go first.
type listModel struct {
	moveOnTouch bool
	list        []uint32
}

func (m *listModel) insert(r uint32, _ Chunk) { m.list = append(m.list, r) }
func (m *listModel) touch(r uint32) {
	if m.moveOnTouch {
		m.remove(r)
		m.list = append(m.list, r)
	}
}

func (m *listModel) remove(r uint32) {
	m.list = slices.DeleteFunc(m.list, func(x uint32) bool { return x == r })
}

func (m *listModel) victim(may func(uint32) bool) (uint32, bool) {
	at := slices.IndexFunc(m.list, may)
	if at < 0 {
		return 0, false
	}
	r := m.list[at]
	m.remove(r)
	return r, true
}

// countModel is LFU.
type countModel struct {
	chunks map[uint32]*counted
	now    int
}

type counted struct{ uses, last int }

func (m *countModel) insert(r uint32, _ Chunk) {
	m.now++
	m.chunks[r] = &counted{1, m.now}
}

func (m *countModel) touch(r uint32) {
	m.now++
	m.chunks[r].uses++
	m.chunks[r].last = m.now
}
func (m *countModel) remove(r uint32) { delete(m.chunks, r) }
func (m *countModel) victim(may func(uint32) bool) (victim uint32, ok bool) {
	for r, c := range m.chunks {
		if v := m.chunks[victim]; may(r) && (!ok || c.uses < v.uses || c.uses == v.uses && c.last < v.last) {
			victim, ok = r, true
		}
	}
	if ok {
		delete(m.chunks, victim)
	}
	return victim, ok
}

// sieveModel is SIEVE as published, a queue for each class.
type sieveModel struct {
	queues map[uint8]*sieveQueue
	class  map[uint32]uint8
	now    int
	age    map[uint32]int
}

type sieveQueue struct {
	list    []uint32 // tail (oldest) first
	visited map[uint32]bool
	hand    uint32
	set     bool
}

func newSieveModel() *sieveModel {
	return &sieveModel{queues: map[uint8]*sieveQueue{}, class: map[uint32]uint8{}, age: map[uint32]int{}}
}

func (m *sieveModel) insert(r uint32, c Chunk) {
	if m.queues[c.Class] == nil {
		m.queues[c.Class] = &sieveQueue{visited: map[uint32]bool{}}
	}
	q := m.queues[c.Class]
	m.now++
	m.class[r], m.age[r] = c.Class, m.now
	q.list = append(q.list, r)
	q.visited[r] = false
}
func (m *sieveModel) touch(r uint32) { m.queues[m.class[r]].visited[r] = true }
func (m *sieveModel) remove(r uint32) {
	q := m.queues[m.class[r]]
	at := slices.Index(q.list, r)
	if q.set && q.hand == r {
		if q.set = at+1 < len(q.list); q.set {
			q.hand = q.list[at+1]
		}
	}
	q.list = slices.Delete(q.list, at, at+1)
}

// at is the place of a queue's hand.
func (q *sieveQueue) at() int {
	if !q.set {
		return 0
	}
	return slices.Index(q.list, q.hand)
}

func (m *sieveModel) victim(may func(uint32) bool) (uint32, bool) {
	var order []*sieveQueue
	for _, q := range m.queues {
		if slices.ContainsFunc(q.list, may) {
			order = append(order, q)
		}
	}
	if len(order) == 0 {
		return 0, false
	}
	q := slices.MinFunc(order, func(a, b *sieveQueue) int { return m.age[a.list[a.at()]] - m.age[b.list[b.at()]] })
	for i := q.at(); ; i = (i + 1) % len(q.list) {
		r := q.list[i]
		switch {
		case !may(r):
		case q.visited[r]:
			q.visited[r] = false
		default:
			q.hand, q.set = r, true
			m.remove(r)
			return r, true
		}
	}
}

// TestContract: what holds for every policy, whatever its order.
func TestContract(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkContract(t, name) })
		})
	}
}

func checkContract(t *rapid.T, name string) {
	const records = 64
	p, err := New(name, records)
	if err != nil {
		t.Fatal(err)
	}
	if p.Name() != name {
		t.Fatalf("Name() = %q, want %q", p.Name(), name)
	}
	resident := map[uint32]uint8{}
	busy := map[uint32]bool{}
	evict := func(of uint64) {
		got, ok := p.VictimOf(of, func(r uint32) bool {
			if _, here := resident[r]; !here {
				t.Fatalf("asked about record %d, which is not resident", r)
			}
			return busy[r]
		})
		class, here := resident[got]
		if ok && (!here || busy[got] || of>>class&1 == 0) {
			t.Fatalf("victim %d of %#x: resident %v, busy %v, class %d", got, of, here, busy[got], class)
		}
		if !ok {
			for r, class := range resident {
				if !busy[r] && of>>class&1 == 1 {
					t.Fatalf("no victim of %#x, but record %d may go", of, r)
				}
			}
			return
		}
		delete(resident, got)
	}
	for range rapid.IntRange(1, 60).Draw(t, "requests") {
		// A request: a chain in either order, resident chunks touched, others inserted.
		chain, depth := rapid.IntRange(0, 7).Draw(t, "chain"), rapid.IntRange(1, 12).Draw(t, "depth")
		rootFirst := rapid.Bool().Draw(t, "root first")
		for i := range depth {
			if !rootFirst {
				i = depth - 1 - i
			}
			r := uint32(chain*8+i) % records
			if _, here := resident[r]; here {
				p.Touch(r)
				continue
			}
			c := Chunk{Key: uint64(chain)<<32 + uint64(i) + 1, Depth: uint32(i), Class: uint8(chain % 3)}
			if i > 0 {
				c.Parent = c.Key - 1
			}
			p.Insert(r, c)
			resident[r] = c.Class
		}
		for range rapid.IntRange(0, 8).Draw(t, "calls") {
			r := uint32(rapid.IntRange(0, records-1).Draw(t, "record"))
			switch rapid.IntRange(0, 4).Draw(t, "call") {
			case 0:
				if _, here := resident[r]; here {
					p.Remove(r)
					delete(resident, r)
				}
			case 1:
				busy[r] = !busy[r]
			case 2:
				evict(allClasses)
			default:
				evict(uint64(rapid.IntRange(1, 7).Draw(t, "classes")))
			}
		}
		if p.Len() != len(resident) {
			t.Fatalf("Len() = %d, want %d", p.Len(), len(resident))
		}
	}
	clear(busy)
	for len(resident) > 0 {
		evict(allClasses)
	}
	if r, ok := p.Victim(func(uint32) bool { return false }); ok || p.Len() != 0 {
		t.Fatalf("an empty policy has victim %d, Len() = %d", r, p.Len())
	}
}

func TestNew(t *testing.T) {
	if !Known(Default) || Known("") || Known("LRU") {
		t.Error("Known")
	}
	if _, err := New("mru", 1); err == nil || fmt.Sprint(err) == "" {
		t.Error("New(mru) has no error")
	}
}

// TestBucketMask: every age of the ring is in one bucket, the one that bucketOf
// says.
func TestBucketMask(t *testing.T) {
	var all uint64
	for b := range buckets - 1 {
		mask := bucketMask(b)
		if all&mask != 0 {
			t.Errorf("bucket %d overlaps", b)
		}
		all |= mask
		for ; mask != 0; mask &= mask - 1 {
			if age := uint32(slotRing - 1 - bits.TrailingZeros64(mask)); bucketOf(age) != b {
				t.Errorf("age %d in bucket %d, bucketOf says %d", age, b, bucketOf(age))
			}
		}
	}
	if all != ^uint64(0) || bucketOf(slotRing) != buckets-1 {
		t.Errorf("ages left out: %#x", ^all)
	}
}
