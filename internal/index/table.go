package index

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// MaxCapacity is the most records that a table can have.
const MaxCapacity = 1<<numberBits - 2

const (
	numberBits = 25
	numberMask = 1<<numberBits - 1
	// stripes is how many counters of removals there are: enough that few
	// lookups meet a removal of another chain.
	stripes = 1 << 10
	// patience is how many records a reader goes along before it looks whether it
	// is still in the chain that it began with.
	patience = 64
)

// Table maps 64-bit keys to record numbers.
//
// Find is for any goroutine. Insert and Remove are for one at a time; see the
// package's comment for what readers see meanwhile.
//
// INVARIANT: a record is in at most one chain, that of its key's bucket.
type Table struct {
	// A link is 0 for the chain's end, else tag<<numberBits | record+1.
	heads []atomic.Uint32 // by bucket, the link to the first record
	next  []atomic.Uint32 // by record, the link to the one behind it
	// removals counts those from the buckets of a stripe.
	removals []atomic.Uint64
	// departures counts them by record: those of a run of records together.
	departures []atomic.Uint64
	used       int
}

// New returns a table for the records [0, capacity).
//
// REQUIRES: 0 < capacity <= MaxCapacity.
func New(capacity int) *Table {
	if capacity <= 0 || capacity > MaxCapacity {
		panic(fmt.Sprintf("BUG: index capacity %d", capacity))
	}
	return &Table{
		heads: make([]atomic.Uint32, capacity+capacity/4), next: make([]atomic.Uint32, capacity),
		removals: make([]atomic.Uint64, stripes), departures: make([]atomic.Uint64, stripes),
	}
}

// Len returns the number of records in the table. It is the writer's.
func (t *Table) Len() int { return t.used }

// Bytes returns the size of the table's memory.
func (t *Table) Bytes() int {
	return 4*len(t.heads) + 4*len(t.next) + 8*len(t.removals) + 8*len(t.departures)
}

// Memory returns what lookups read at random, for whoever can have it placed well.
func (t *Table) Memory() (heads, next []atomic.Uint32) { return t.heads, t.next }

// place returns a key's bucket and, shifted into place, its tag. Keys need not
// be spread evenly, but should differ.
func (t *Table) place(key uint64) (bucket, tag uint32) {
	spread := key * 0x9E3779B97F4A7C15
	high, _ := bits.Mul64(spread, uint64(len(t.heads)))
	return uint32(high), uint32(spread>>8) &^ numberMask
}

func (t *Table) removalsOf(bucket uint32) *atomic.Uint64 { return &t.removals[bucket%stripes] }

// departuresOf is the counter of 64 records in a row and of some others.
func (t *Table) departuresOf(record uint32) *atomic.Uint64 {
	return &t.departures[record/64%stripes]
}

// Departures returns how many records were removed so far of those that share a
// counter with a record. Whoever has a record's number from elsewhere may ask
// the record itself, without Find: if the number of departures is the same
// afterwards, all that was read meanwhile was of one record, and that was in the
// table when the first of it was read.
//
// REQUIRES: what is read first tells that the record is in the table; the writer
// has it say otherwise before Remove, and writes it anew after Remove only.
func (t *Table) Departures(record uint32) uint64 { return t.departuresOf(record).Load() }

// Find returns the record of key. isKey tells whether a record, whose tag fits,
// is the key's. It may be asked about a record while that is written anew; what
// it says then is not believed.
func (t *Table) Find(key uint64, isKey func(record uint32) bool) (record uint32, found bool) {
	bucket, tag := t.place(key)
	counter := t.removalsOf(bucket)
	for {
		before := counter.Load()
		record, found = t.walk(bucket, tag, counter, before, isKey)
		if counter.Load() == before {
			return record, found
		}
	}
}

// Ahead begins lookups whose keys are known: it returns in likely, for each key,
// one more than the number of the record that Find will ask about, if it is one
// of the first two in its chain, else 0. The loads do not wait for each other, as
// those of one lookup after the other do; what they bring into the cache, Find
// has at hand. A hint, and no answer.
//
// REQUIRES: len(likely) >= len(keys).
func (t *Table) Ahead(keys []uint64, likely []uint32) {
	for i, key := range keys {
		bucket, _ := t.place(key)
		likely[i] = t.heads[bucket].Load()
	}
	for i, key := range keys {
		_, tag := t.place(key)
		link := likely[i]
		if link != 0 && link&^numberMask != tag {
			link = t.next[link&numberMask-1].Load()
		}
		if link&^numberMask != tag {
			link = 0
		}
		likely[i] = link & numberMask
	}
}

// walk looks through a chain. Once the counter is no longer what it was before,
// it may return anything.
func (t *Table) walk(bucket, tag uint32, counter *atomic.Uint64, before uint64, isKey func(record uint32) bool) (uint32, bool) {
	steps := 0
	for link := t.heads[bucket].Load(); link != 0; {
		record := link&numberMask - 1
		if link&^numberMask == tag && isKey(record) {
			return record, true
		}
		link = t.next[record].Load()
		if steps++; steps%patience == 0 && counter.Load() != before {
			return 0, false
		}
	}
	return 0, false
}

// Insert adds a record under key.
//
// REQUIRES: neither the key nor the record is in the table, and what isKey will
// read of the record is written.
func (t *Table) Insert(key uint64, record uint32) {
	bucket, tag := t.place(key)
	t.next[record].Store(t.heads[bucket].Load())
	t.heads[bucket].Store(tag | (record + 1))
	t.used++
}

// Remove drops a record that was inserted under key. It reports whether the
// record was there. When it returns, what isKey reads of the record may be
// overwritten.
func (t *Table) Remove(key uint64, record uint32) bool {
	bucket, _ := t.place(key)
	at := &t.heads[bucket]
	for {
		link := at.Load()
		if link == 0 {
			return false
		}
		if link&numberMask == record+1 {
			break
		}
		at = &t.next[link&numberMask-1]
	}
	at.Store(t.next[record].Load())
	t.removalsOf(bucket).Add(1)
	t.departuresOf(record).Add(1)
	t.used--
	return true
}
