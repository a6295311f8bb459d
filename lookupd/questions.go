package lookupd

import "github.com/mooncake-sidecar/sidecar/coordinator"

const (
	// firstQuestion is how many chunks are asked for at first, and lastQuestion how
	// many at most: each question is twice as long as the one before, so that a miss
	// at the beginning costs a small one.
	firstQuestion = 16
	lastQuestion  = 4096
)

// probe is a chunk as rules ask for it.
type probe struct{ group, hash int }

// questions chooses what to ask the store about a request, question by question. It
// is pure. Rules look for chunks in the order in which an answer depends on them,
// so what they looked for and nobody knows comes first. Rules that stop at the first
// chunk that is not there have looked for one of a group, which the chunks behind
// it in its chain are asked for with.
type questions struct {
	size   int
	probed []probe
	seen   map[probe]struct{}
}

// begin forgets what rules have looked for, before they are applied again.
func (q *questions) begin() {
	q.size = min(max(2*q.size, firstQuestion), lastQuestion)
	q.probed, q.seen = q.probed[:0], map[probe]struct{}{}
}

// unknown notes that rules have looked for a chunk that is not known.
func (q *questions) unknown(p probe) {
	if _, again := q.seen[p]; again || len(q.probed) == q.size {
		return
	}
	q.seen[p] = struct{}{}
	q.probed = append(q.probed, p)
}

// next returns what to ask now. asks is what an exact answer can depend on.
func (q *questions) next(asks []coordinator.Ask) []probe {
	chosen := append([]probe{}, q.probed...)
	of := map[int]int{} // unknown chunks that were looked for, by group
	for _, p := range q.probed {
		of[p.group]++
	}
	chains := 0
	for _, n := range of {
		if n == 1 {
			chains++
		}
	}
	if chains == 0 {
		return chosen
	}
	share := (q.size - len(chosen)) / chains
	for _, p := range q.probed {
		if of[p.group] != 1 || p.group >= len(asks) {
			continue
		}
		left := share
		for hash := range asks[p.group].Each {
			if hash <= p.hash {
				continue
			}
			if left == 0 {
				break
			}
			chosen = append(chosen, probe{p.group, hash})
			left--
		}
	}
	return chosen
}
