package level

// stream puts the numbers of a publisher's messages in order. It is pure.
type stream struct {
	next  uint64
	begun bool
}

// order says how a message follows the one before.
type order uint8

const (
	// inOrder: it is the next, or the first that was heard.
	inOrder order = iota
	// behindGap: messages before it were not heard.
	behindGap
	// startedAnew: its number has come before; it is another publisher's.
	startedAnew
)

// take takes the number of the next message.
func (s *stream) take(seq uint64) (o order) {
	switch {
	case !s.begun || seq == s.next:
	case seq > s.next:
		o = behindGap
	default:
		o = startedAnew
	}
	s.next, s.begun = seq+1, true
	return o
}

// end forgets the publisher.
func (s *stream) end() { *s = stream{} }
