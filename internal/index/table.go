// Package index is the table from a chunk's key to its record number: open
// addressing with linear probing, 8 bytes an entry, no pointers for the garbage
// collector to follow, memory fixed at creation.
//
// The table holds only a 32-bit tag of the key and the record number. Whether a
// record really is the key's is for the caller to say, who has the whole key in
// the record: see Find. Keys are digests already, so their bits are used as they
// are, the low ones for the slot and the high ones for the tag.
//
// A Table is not safe for concurrent use by a writer; any number of readers may
// share it while nobody writes.
package index

import "fmt"

// Table maps 64-bit keys to record numbers.
//
// INVARIANT: between the home slot of an entry and the entry there is no empty
// slot (removal shifts back, there are no tombstones).
type Table struct {
	// entries[i] is 0 for an empty slot, else tag<<32 | record+1.
	entries []uint64
	mask    uint64
	used    int
	limit   int
}

// New returns a table for up to capacity records, filled at most to three
// quarters.
//
// REQUIRES: 0 < capacity < 2^31.
func New(capacity int) *Table {
	if capacity <= 0 || capacity >= 1<<31 {
		panic(fmt.Sprintf("BUG: index capacity %d", capacity))
	}
	size := 8
	for size/4*3 < capacity {
		size *= 2
	}
	return &Table{entries: make([]uint64, size), mask: uint64(size - 1), limit: capacity}
}

// Len returns the number of records in the table.
func (t *Table) Len() int { return t.used }

// Bytes returns the size of the table's memory.
func (t *Table) Bytes() int { return len(t.entries) * 8 }

func entryOf(key uint64, record uint32) uint64 {
	return key>>32<<32 | (uint64(record) + 1)
}

// Find returns the record of key. isKey tells whether a record, whose tag fits,
// is the key's.
func (t *Table) Find(key uint64, isKey func(record uint32) bool) (uint32, bool) {
	for i := key & t.mask; ; i = (i + 1) & t.mask {
		e := t.entries[i]
		if e == 0 {
			return 0, false
		}
		if e>>32 == key>>32 {
			if record := uint32(e) - 1; isKey(record) {
				return record, true
			}
		}
	}
}

// Insert adds a record under key.
//
// REQUIRES: the key is not in the table and Len() < capacity.
func (t *Table) Insert(key uint64, record uint32) {
	if t.used == t.limit {
		panic("BUG: index is full")
	}
	i := key & t.mask
	for t.entries[i] != 0 {
		i = (i + 1) & t.mask
	}
	t.entries[i] = entryOf(key, record)
	t.used++
}

// Remove drops a record that was inserted under key. keyOf returns the key of
// any record in the table: the entries behind the gap move up to their home
// slots. It reports whether the record was there.
func (t *Table) Remove(key uint64, record uint32, keyOf func(record uint32) uint64) bool {
	want := entryOf(key, record)
	i := key & t.mask
	for t.entries[i] != want {
		if t.entries[i] == 0 {
			return false
		}
		i = (i + 1) & t.mask
	}
	t.used--
	gap := i
	for j := (i + 1) & t.mask; t.entries[j] != 0; j = (j + 1) & t.mask {
		home := keyOf(uint32(t.entries[j])-1) & t.mask
		// The entry may move into the gap unless its home lies behind the gap.
		if (j-home)&t.mask >= (j-gap)&t.mask {
			t.entries[gap] = t.entries[j]
			gap = j
		}
	}
	t.entries[gap] = 0
	return true
}
