package missratio

import "github.com/mooncake-sidecar/sidecar/internal/evict"

// store is a scaled-down store: keys, and the policy's order of them.
type store struct {
	policy   evict.Policy
	byKey    map[uint64]uint32
	chunks   []chunk // by record
	free     []uint32
	used     uint64 // bytes
	capacity uint64 // bytes, scaled down
}

type chunk struct{ key, bytes uint64 }

func newStore(policy evict.Policy, records int) *store {
	s := &store{policy: policy, byKey: make(map[uint64]uint32, records), chunks: make([]chunk, records), free: make([]uint32, records)}
	for i := range s.free {
		s.free[i] = uint32(records - 1 - i)
	}
	return s
}

func nobodyUses(uint32) bool { return false }

// request looks the samples of one request up, then stores them, and returns
// how many were hits: those before the first that is missing.
func (s *store) request(samples []sample, chunkBytes uint64) (hits int) {
	for hits < len(samples) {
		if _, ok := s.byKey[samples[hits].key]; !ok {
			break
		}
		hits++
	}
	for i := len(samples) - 1; i >= 0; i-- {
		// The sampled chunks of a chain are a chain themselves: a policy that knows
		// requests by their chains finds small ones here.
		parent := uint64(0)
		if i > 0 {
			parent = samples[i-1].key
		}
		s.use(&samples[i], parent, chunkBytes)
	}
	return hits
}

func (s *store) use(x *sample, parent, chunkBytes uint64) {
	if rec, ok := s.byKey[x.key]; ok {
		s.policy.Touch(rec)
		return
	}
	if chunkBytes > s.capacity {
		return
	}
	for s.used+chunkBytes > s.capacity || len(s.free) == 0 {
		s.evict()
	}
	rec := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.byKey[x.key] = rec
	s.chunks[rec] = chunk{x.key, chunkBytes}
	s.used += chunkBytes
	s.policy.Insert(rec, evict.Chunk{Key: x.key, Parent: parent, Depth: x.depth})
}

// shrink evicts what the capacity has no room for.
func (s *store) shrink() {
	for s.used > s.capacity {
		s.evict()
	}
}

// evict takes the policy's victim.
//
// REQUIRES: the store is not empty.
func (s *store) evict() {
	rec, ok := s.policy.Victim(nobodyUses)
	if !ok {
		panic("BUG: the policy has no victim although nothing is in use")
	}
	delete(s.byKey, s.chunks[rec].key)
	s.used -= s.chunks[rec].bytes
	s.free = append(s.free, rec)
}
