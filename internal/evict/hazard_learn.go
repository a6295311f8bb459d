package evict

import (
	"cmp"
	"math"
	"slices"
)

const (
	// kindPrior is how many chunks the hazard of all kinds together counts for in
	// that of a kind, and commonPrior how many the assumption, that old chunks come
	// back less, counts for in that of all.
	kindPrior   = 300
	commonPrior = 30_000
	// firstRate is what is assumed of chunks just used, a slot.
	firstRate = 0.05
	// mostHazard keeps some chunks alive at every age.
	mostHazard = 0.999
)

// learner estimates hazards by a life table: of the chunks of a kind that reached
// an age, how many came back before the next. It is told when a chunk is used
// (started) and when that use was followed by another (reused).
type learner struct {
	// alive is the chunks last used in a slot that did not come back since,
	// whether resident or not.
	alive [learnedKinds][slotRing]int32
	// reached and back: chunks that reached an age bucket, and of those the ones
	// that came back in it. They fade.
	reached, back [learnedKinds][buckets]float64
	// order is the places, the one with the smallest worth first.
	order [places]uint16
	value [places]float64
	// weight is how many slots reached and back stand for.
	weight float64
}

func (l *learner) reset() {
	*l = learner{}
	l.rank(true)
}

func (l *learner) started(kind int, slot uint32) { l.alive[kind][slot%slotRing]++ }

// undo takes a start back.
func (l *learner) undo(kind int, slot uint32) {
	if a := &l.alive[kind][slot%slotRing]; *a > 0 {
		*a--
	}
}

// reused notes the use of a chunk that was last used age slots ago.
func (l *learner) reused(kind int, slot, age uint32) {
	if age < slotRing {
		l.undo(kind, slot-age)
	}
	l.back[kind][bucketOf(age)]++
}

// nextSlot lets the chunks of earlier slots reach the ages they now have.
func (l *learner) nextSlot(slot uint32, fading float64) {
	l.weight = l.weight*fading + 1
	for k := range l.alive {
		for b := range l.reached[k] {
			l.reached[k][b] *= fading
			l.back[k][b] *= fading
		}
		l.reached[k][0] += float64(l.alive[k][(slot-1)%slotRing])
		for b, e := range bucketEdges {
			l.reached[k][b+1] += float64(l.alive[k][(slot-e)%slotRing])
		}
		l.alive[k][slot%slotRing] = 0
	}
}

// rank orders the places anew. While it is warming up, by age alone.
func (l *learner) rank(warm bool) {
	common := l.common()
	for k := range kinds {
		h := common
		if k < learnedKinds {
			h = l.ofKind(k, &common)
		}
		for b := range buckets {
			if warm {
				l.value[k*buckets+b] = -float64(b)
			} else {
				l.value[k*buckets+b] = h.worth(b)
			}
		}
	}
	for i := range l.order {
		l.order[i] = uint16(i)
	}
	slices.SortStableFunc(l.order[:], func(a, b uint16) int { return cmp.Compare(l.value[a], l.value[b]) })
}

// common returns the hazards of all kinds together. Where few chunks reached an
// age, chunks are taken to come back the less the older they are, going on from
// the age before.
func (l *learner) common() (h hazards) {
	rate := firstRate
	for b := range h {
		var reached, back float64
		for k := range l.reached {
			reached += l.reached[k][b]
			back += l.back[k][b]
		}
		if b > 0 {
			rate *= bucketMiddle(b-1) / bucketMiddle(b)
		}
		assumed := 1 - math.Exp(-rate*bucketSlots(b))
		h[b] = min((back+commonPrior*assumed)/(reached+commonPrior), mostHazard)
		rate = -math.Log1p(-h[b]) / bucketSlots(b)
	}
	return h
}

// ofKind returns the hazards of a kind. Where few of its chunks reached an age,
// they are to those of all kinds together as at its other ages.
func (l *learner) ofKind(kind int, common *hazards) (h hazards) {
	got, expected := float64(kindPrior), float64(kindPrior)
	for b := range h {
		got += l.back[kind][b]
		expected += l.reached[kind][b] * common[b]
	}
	for b := range h {
		assumed := min(common[b]*got/expected, mostHazard)
		h[b] = min((l.back[kind][b]+kindPrior*assumed)/(l.reached[kind][b]+kindPrior), mostHazard)
	}
	return h
}

// hazards are, by age bucket, the chances that a chunk which reaches the bucket
// comes back within it.
type hazards [buckets]float64

// worth is the most hits per slot that a chunk in the bucket can be expected to
// bring, over all ages up to which it might be kept.
func (h *hazards) worth(bucket int) float64 {
	best, hits, time, left := 0.0, 0.0, 0.0, 1.0
	for b := bucket; b < buckets; b++ {
		hits += left * h[b]
		time += left * (1 - h[b]/2) * bucketSlots(b)
		left *= 1 - h[b]
		best = max(best, hits/time)
	}
	return best
}

// bucketSlots is a bucket's width; the last is taken to be as wide as all others.
func bucketSlots(bucket int) float64 {
	switch bucket {
	case 0:
		return float64(bucketEdges[0])
	case buckets - 1:
		return slotRing
	}
	return float64(bucketEdges[bucket] - bucketEdges[bucket-1])
}

// bucketMiddle is the age in a bucket's middle.
func bucketMiddle(bucket int) float64 {
	from := 0.0
	if bucket > 0 {
		from = float64(bucketEdges[bucket-1])
	}
	return from + bucketSlots(bucket)/2
}
