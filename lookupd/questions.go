package lookupd

import "github.com/mooncake-sidecar/sidecar/coordinator"

const (
	// firstQuestion is how many chunks are asked for at first, so that a miss at the
	// beginning costs a small question. Each is growth times as long as the one
	// before, and lastQuestion at most: rules are applied again behind each, and a
	// way to the store and back costs as much as some hundred keys.
	firstQuestion = 16
	growth        = 32
	lastQuestion  = 8192
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
	// chained: the last question was about chains.
	chained bool
}

// begin forgets what rules have looked for, before they are applied again.
func (q *questions) begin() {
	q.size = min(max(growth*q.size, firstQuestion), lastQuestion)
	q.probed, q.seen = q.probed[:0], map[probe]struct{}{}
}

// unknown notes that rules have looked for a chunk that is not known.
func (q *questions) unknown(p probe) {
	if len(q.probed) == q.size {
		return
	}
	if _, again := q.seen[p]; again {
		return
	}
	q.seen[p] = struct{}{}
	q.probed = append(q.probed, p)
}

// next returns what to ask now; asks is what an exact answer can depend on. last:
// nothing is left to be asked behind it.
func (q *questions) next(asks []coordinator.Ask) (chosen []probe, last bool) {
	chosen = append([]probe{}, q.probed...)
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
		if q.chained {
			// The chains' end is known, and the others are looked for from there: most often
			// the first are there, and those before them are of no use.
			q.chained, q.size = false, firstQuestion
			chosen = chosen[:min(len(chosen), firstQuestion)]
		}
		return chosen, false
	}
	q.chained = true
	// Of several groups one may hang on what the others have.
	last = len(asks) == 1
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
				last = false
				break
			}
			chosen = append(chosen, probe{p.group, hash})
			left--
		}
	}
	return chosen, last
}
