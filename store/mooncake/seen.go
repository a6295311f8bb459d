package mooncake

const (
	// seenKeys is how many keys of a namespace are remembered, and seenOfCall how many
	// of one call: the first, as others share the beginnings of chains.
	seenKeys   = 1024
	seenOfCall = 64
)

// seen are keys of a namespace that the cluster had lately.
type seen struct {
	keys []string
	next int // is written over when there are seenKeys
}

// note adds a key.
func (s *seen) note(key string) {
	if len(s.keys) < seenKeys {
		s.keys = append(s.keys, key)
		return
	}
	s.keys[s.next] = key
	s.next = (s.next + 1) % seenKeys
}

// add notes the first keys of a question that are there.
func (s *seen) add(keys []string, answers []Answer) {
	left := seenOfCall
	for i, a := range answers {
		if a == 1 && left > 0 {
			s.note(keys[i])
			left--
		}
	}
}
