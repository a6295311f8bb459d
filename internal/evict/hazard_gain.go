package evict

import "math"

// leastGain is what part more than LRU the learned tables must promise before a
// store is anything else. They are counts of the past, of which the order by
// worth takes the best: a promise of little is noise. See docs/eviction.md for
// where the figure is from.
const leastGain = 1.0 / 16

// gain is what part more than LRU a store of n chunks would have hit, by what was
// learned, had it always kept the chunks of most worth. It leaves order by worth.
func (l *learner) gain(n int) float64 {
	l.rank(false)
	room := float64(n) * l.weight
	byWorth, byAge := shelf{left: room}, shelf{left: room}
	for i := places - 1; i >= 0; i-- {
		if kind := int(l.order[i]) / buckets; kind < learnedKinds {
			byWorth.put(l.stay(kind, int(l.order[i])%buckets))
		}
	}
	for b := range buckets {
		room, hits := 0.0, 0.0
		for kind := range learnedKinds {
			r, h := l.stay(kind, b)
			room, hits = room+r, hits+h
		}
		byAge.put(room, hits)
	}
	return byWorth.hits/math.Max(byAge.hits, 1) - 1
}

// stay is the room that the chunks which reached a place take while they are in
// it, in chunks by slots, and the hits that they bring there.
func (l *learner) stay(kind, bucket int) (room, hits float64) {
	reached, back := l.reached[kind][bucket], l.back[kind][bucket]
	if reached <= 0 {
		return 0, 0
	}
	return reached * bucketSlots(bucket) * (1 - math.Min(back/reached, 1)/2), back
}

// shelf is room that is filled with what comes first.
type shelf struct{ left, hits float64 }

func (s *shelf) put(room, hits float64) {
	if room <= 0 || s.left <= 0 {
		return
	}
	part := math.Min(1, s.left/room)
	s.hits += part * hits
	s.left -= part * room
}
