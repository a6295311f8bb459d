package index

import (
	"testing"

	"pgregory.net/rapid"
)

// TestAgainstMap drives the table and a Go map with the same operations, with so
// few buckets that chains have many records.
func TestAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 48).Draw(t, "capacity")
		table := New(capacity)
		model := map[uint64]uint32{}
		keys := map[uint32]uint64{}
		var free []uint32
		for r := range capacity {
			free = append(free, uint32(r))
		}
		find := func(key uint64) (uint32, bool) {
			return table.Find(key, func(r uint32) bool { return keys[r] == key })
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			key := uint64(rapid.IntRange(1, 90).Draw(t, "key"))
			record, present := model[key]
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				if !present && len(free) > 0 {
					at := rapid.IntRange(0, len(free)-1).Draw(t, "record")
					record = free[at]
					free[at] = free[len(free)-1]
					free = free[:len(free)-1]
					model[key], keys[record] = record, key
					table.Insert(key, record)
				}
			case 1:
				if !present && len(free) > 0 {
					record = free[0]
				}
				if present || len(free) > 0 {
					if got := table.Remove(key, record); present != got {
						t.Fatalf("Remove(%#x) = %v, want %v", key, got, present)
					}
				}
				if present {
					delete(model, key)
					delete(keys, record)
					free = append(free, record)
				}
			}
			for k := range model {
				if got, ok := find(k); !ok || got != model[k] {
					t.Fatalf("Find(%#x) = %d, %v, want %d", k, got, ok, model[k])
				}
			}
			if _, ok := find(key); ok != hasKey(model, key) {
				t.Fatalf("Find(%#x) found = %v", key, ok)
			}
			if table.Len() != len(model) {
				t.Fatalf("Len() = %d, want %d", table.Len(), len(model))
			}
		}
	})
}

func hasKey(m map[uint64]uint32, key uint64) bool {
	_, ok := m[key]
	return ok
}

// TestEveryRecordFits: the highest number of the largest table has a link of its
// own.
func TestEveryRecordFits(t *testing.T) {
	table := New(MaxCapacity)
	keys := map[uint32]uint64{0: 1, 1: 1 << 63, MaxCapacity - 1: ^uint64(0)}
	for record, key := range keys {
		table.Insert(key, record)
	}
	for record, key := range keys {
		if got, ok := table.Find(key, func(r uint32) bool { return keys[r] == key }); !ok || got != record {
			t.Errorf("record %d: found %d, %v", record, got, ok)
		}
	}
}

// TestAhead: the record that a lookup is likely to ask about is the key's own.
func TestAhead(t *testing.T) {
	const records = 1000
	table := New(records)
	keys := make([]uint64, records+100)
	for i := range keys {
		keys[i] = uint64(i) * 0x9E3779B97F4A7C15
		if i < records {
			table.Insert(keys[i], uint32(i))
		}
	}
	likely := make([]uint32, len(keys))
	table.Ahead(keys, likely)
	right, stray := 0, 0
	for i, number := range likely {
		switch {
		case number == uint32(i)+1:
			right++
		case number != 0:
			stray++
		}
	}
	if right < records*8/10 || stray > len(keys)/20 {
		t.Errorf("%d of %d keys' own records, %d of others", right, records, stray)
	}
}

// TestDepartures: a removal is counted for its record, an insertion is not.
func TestDepartures(t *testing.T) {
	table := New(200)
	before := table.Departures(100)
	table.Insert(7, 100)
	if table.Departures(100) != before {
		t.Error("an insertion counts")
	}
	if table.Remove(8, 100); table.Departures(100) != before {
		t.Error("what was not there counts")
	}
	if !table.Remove(7, 100) || table.Departures(100) == before {
		t.Error("a removal does not count")
	}
	if table.Departures(199) != 0 {
		t.Error("it counts for a record that is far away")
	}
}
