package scheduler

import (
	"fmt"
	"math"
	"time"
)

// ReplicationOptions are when a prefix is copied to another instance before
// anybody needs it there.
type ReplicationOptions struct {
	// Uses is how often a prefix must have been asked for lately, for each instance
	// that has it, to be copied to one more. 0: nothing is copied.
	Uses float64
	// HalfLife is after what time a use counts half.
	HalfLife time.Duration
	// MinBlocks is the shortest prefix worth a copy.
	MinBlocks int
	// Prefixes is how many are remembered; 0 for 4096.
	Prefixes int
}

// Validate returns the first fault.
func (o *ReplicationOptions) Validate() error {
	if !(o.Uses >= 0 && o.Uses <= math.MaxFloat64) || o.Uses > 0 && o.HalfLife <= 0 || o.MinBlocks < 0 || o.Prefixes < 0 {
		return fmt.Errorf("%w: replication %+v; want no negative values, and a half-life", ErrOptions, *o)
	}
	return nil
}

// Replication finds prefixes that are asked for often, for their number of copies.
// It forgets the coldest of a set of a few when it is full, so its memory is fixed.
type Replication struct {
	options ReplicationOptions
	sets    [][hotWays]hot
}

const (
	hotWays        = 8
	defaultHotSets = 4096 / hotWays
)

type hot struct {
	key  uint64
	uses float64
	at   time.Duration
	// target is to have got a copy, asked for at askedAt; Nobody: none was.
	target  int
	askedAt time.Duration
}

// NewReplication returns one that has seen nothing.
func NewReplication(options ReplicationOptions) *Replication {
	sets := defaultHotSets
	if options.Prefixes > 0 {
		sets = (options.Prefixes + hotWays - 1) / hotWays
	}
	return &Replication{options: options, sets: make([][hotWays]hot, sets)}
}

// Copy is a prefix of so many blocks that is worth having in one more place.
type Copy struct{ Source, Target, Blocks int }

// Used notes that a prefix of a request was used, which key names: its last
// block's. It may say what to copy: to the instance with the shortest queue of
// those that lack it. What was asked for is taken for done for a half-life, and asked for
// again if it is not there then. now is any clock that does not go back.
func (r *Replication) Used(now time.Duration, key uint64, blocks int, all []Prefiller) (Copy, bool) {
	if r.options.Uses <= 0 || blocks < max(r.options.MinBlocks, 1) {
		return Copy{}, false
	}
	h := r.count(now, key)
	have, source, target := 0, Nobody, Nobody
	for i := range all {
		switch {
		case all[i].LocalBlocks >= blocks:
			have++
			if all[i].ReadyBlocks >= blocks && (source == Nobody || all[i].egress() < all[source].egress()) {
				source = i
			}
		case i == h.target && now-h.askedAt < r.options.HalfLife: // it is on its way
			have++
		case all[i].Egress > 0 || all[i].Ingress > 0: // its links have better to do
		case target == Nobody || all[i].queue() < all[target].queue():
			target = i
		}
	}
	if source == Nobody || target == Nobody || h.uses < r.options.Uses*float64(have) {
		return Copy{}, false
	}
	h.target, h.askedAt = target, now
	return Copy{Source: source, Target: target, Blocks: blocks}, true
}

// count adds a use and returns what is known of the prefix.
func (r *Replication) count(now time.Duration, key uint64) *hot {
	set := &r.sets[key*0x9E3779B97F4A7C15>>32%uint64(len(r.sets))]
	coldest := 0
	for i := range set {
		if set[i].key == key && set[i].uses > 0 {
			set[i].uses = 1 + r.faded(now, &set[i])
			set[i].at = now
			return &set[i]
		}
		if r.faded(now, &set[i]) < r.faded(now, &set[coldest]) {
			coldest = i
		}
	}
	set[coldest] = hot{key: key, uses: 1, at: now, target: Nobody}
	return &set[coldest]
}

func (r *Replication) faded(now time.Duration, h *hot) float64 {
	return h.uses * math.Exp2(-float64(now-h.at)/float64(r.options.HalfLife))
}
