package events

import "sync"

// Recorded is a batch as it was published.
type Recorded struct {
	Topic   string
	Seq     uint64
	Payload []byte
	// begins: it begins with AllBlocksCleared.
	begins bool
}

// buffer has the latest batches of all streams, for those who have missed some. It
// is bounded in number and bytes.
type buffer struct {
	mu sync.Mutex // guards all below

	limit, limitBytes int
	ring              []Recorded // oldest first
	bytes             int
	// first is, by topic, the number of the first batch there was, next the number
	// behind the latest one.
	first, next map[string]uint64
}

func (b *buffer) add(r *Recorded) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.first[r.Topic]; !known {
		b.first[r.Topic] = r.Seq
	}
	b.next[r.Topic] = r.Seq + 1
	b.ring = append(b.ring, *r)
	b.bytes += len(r.Payload)
	drop := 0
	for len(b.ring)-drop > b.limit || b.bytes > b.limitBytes && drop < len(b.ring) {
		b.bytes -= len(b.ring[drop].Payload)
		b.ring[drop].Payload = nil
		drop++
	}
	b.ring = b.ring[drop:]
}

// from returns the batches of a topic, or with nil of all, from a number on. lacking
// are the topics of which a reader that has all before that number can't know the
// state: batches in between are gone, and none of those that are left begins anew.
func (b *buffer) from(topic *string, seq uint64) (found []Recorded, lacking []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	oldest, begins := map[string]uint64{}, map[string]bool{}
	for i := range b.ring {
		r := &b.ring[i]
		if topic != nil && *topic != r.Topic {
			continue
		}
		if _, known := oldest[r.Topic]; !known {
			oldest[r.Topic] = r.Seq
		}
		if r.Seq >= seq {
			found = append(found, *r)
			begins[r.Topic] = begins[r.Topic] || r.begins
		}
	}
	for t, first := range b.first {
		if topic != nil && *topic != t {
			continue
		}
		have, some := oldest[t]
		// Who has them all lacks none, though other topics have pushed them out.
		whole := begins[t] || seq >= b.next[t] || some && have <= max(seq, first)
		if !whole {
			lacking = append(lacking, t)
		}
	}
	return found, lacking
}

func (b *buffer) size() (batches, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ring), b.bytes
}
