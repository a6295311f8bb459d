package index

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestReadersDuringChanges has readers look up while a writer removes and
// inserts, in few buckets, so that chains are long and record numbers come back
// at once in another chain. What is in the table all the while must be found
// each time, what is not must never be, and what comes and goes is only ever
// found at a record that is its own.
func TestReadersDuringChanges(t *testing.T) {
	const (
		lasting, churned = 24, 40
		changes          = 200_000
	)
	table := New(lasting + 4)
	keyOf := make([]atomic.Uint64, lasting+4) // by record
	insert := func(key uint64, record uint32) {
		keyOf[record].Store(key)
		table.Insert(key, record)
	}
	for i := range uint32(lasting) {
		insert(uint64(i)+1, i)
	}
	var (
		done    atomic.Bool
		readers sync.WaitGroup
		found   atomic.Uint64
	)
	look := func(key uint64) (uint32, bool) {
		return table.Find(key, func(r uint32) bool { return keyOf[r].Load() == key })
	}
	for seed := range uint64(3) {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for !done.Load() {
				key := rng.Uint64N(lasting) + 1
				if r, ok := look(key); !ok || uint64(r)+1 != key {
					t.Errorf("key %d, which stays, was found: %v at record %d", key, ok, r)
					return
				}
				if _, ok := look(5000 + rng.Uint64N(1000)); ok {
					t.Error("a key that never was there was found")
					return
				}
				if r, ok := look(1000 + rng.Uint64N(churned)); ok {
					found.Add(1)
					if r < lasting {
						t.Errorf("a key that comes and goes was found at record %d, which has another", r)
						return
					}
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(9, 9))
	present := map[uint32]uint64{} // record to key
	deadline := time.Now().Add(30 * time.Second)
	for n := 0; n < changes || found.Load() == 0 && time.Now().Before(deadline); n++ { // the readers may begin late
		record := lasting + rng.Uint32N(4)
		if key, ok := present[record]; ok {
			if !table.Remove(key, record) {
				t.Fatal("not there")
			}
			keyOf[record].Store(0)
			delete(present, record)
			continue
		}
		key := 1000 + rng.Uint64N(churned)
		taken := false
		for _, k := range present {
			taken = taken || k == key
		}
		if !taken {
			insert(key, record)
			present[record] = key
		}
	}
	done.Store(true)
	readers.Wait()
	if found.Load() == 0 {
		t.Error("the readers met none of the changes")
	}
}

// TestFindWithStoppedWriter: a reader gets its answer while the writer stands
// still between any two of its steps, which is what a lookup must never wait
// for. The steps are those of Remove and Insert, taken one by one.
func TestFindWithStoppedWriter(t *testing.T) {
	table := New(8)
	keys := map[uint32]uint64{}
	find := func(key uint64) bool {
		_, ok := table.Find(key, func(r uint32) bool { return keys[r] == key })
		return ok
	}
	for i := range uint32(8) {
		keys[i] = uint64(i) + 1
		table.Insert(uint64(i)+1, i)
	}
	allBut := func(gone uint64) {
		t.Helper()
		for key := uint64(1); key <= 8; key++ {
			if key != gone && !find(key) {
				t.Fatalf("key %d is missed", key)
			}
		}
	}
	// Remove record 3, key 4.
	bucket, tag := table.place(4)
	at := &table.heads[bucket]
	for at.Load()&numberMask != 4 {
		at = &table.next[at.Load()&numberMask-1]
	}
	at.Store(table.next[3].Load())
	allBut(4)
	table.removalsOf(bucket).Add(1)
	allBut(4)
	// Insert it again.
	table.next[3].Store(table.heads[bucket].Load())
	allBut(4)
	table.heads[bucket].Store(tag | 4)
	allBut(0)
}

// TestWanderingReader drives the one hard case on purpose: the record that a
// reader stands on is removed and comes back in another chain.
func TestWanderingReader(t *testing.T) {
	table := New(64)
	home, tag := table.place(1)
	same, other := []uint64{1}, uint64(0)
	for key := uint64(2); len(same) < 3 || other == 0; key++ {
		bucket, itsTag := table.place(key)
		if bucket == home && itsTag == tag && len(same) < 3 {
			same = append(same, key) // isKey is asked about it
		} else if bucket != home && other == 0 {
			other = key
		}
	}
	keys := map[uint32]uint64{}
	for i, key := range same {
		keys[uint32(i)] = key
		table.Insert(key, uint32(i)) // the last is first in its chain
	}
	moved := 0
	record, found := table.Find(same[0], func(r uint32) bool {
		if r == 1 && keys[1] == same[1] {
			table.Remove(same[1], 1)
			keys[1] = other
			table.Insert(other, 1)
			moved++
		}
		return keys[r] == same[0]
	})
	if !found || record != 0 {
		t.Errorf("the reader was led into another chain and believed it: %d, %v", record, found)
	}
	if moved != 1 {
		t.Fatal("the reader was not led astray: the test shows nothing")
	}
	// And what is found while it goes is not believed either.
	_, found = table.Find(same[2], func(r uint32) bool {
		if r == 2 && keys[2] == same[2] {
			table.Remove(same[2], 2)
			keys[2] = 0
			return true
		}
		return keys[r] == same[2]
	})
	if found {
		t.Error("a record was found that is another's by now")
	}
}
