package coordinator

// Mask says which chunks of one group take part. It is a value of fixed size:
// masks are periods and windows, not lists of bits.
type Mask struct {
	// First is the first chunk the mask is about and N how many it is about:
	// [First, First+N). Chunks outside are not in the mask.
	First, N int

	kind maskKind
	// A periodic mask has the last `keep` of every `period` chunks, counted from
	// chunk `shift`; period 0 has none.
	shift, period, keep int
	// windows are runs [from, to) that are in a periodic mask besides.
	windows [2][2]int
}

type maskKind uint8

const (
	maskAll maskKind = iota
	maskNone
	maskPeriodic
)

// All reports whether every chunk of [First, First+N) is in the mask, known
// without looking at each.
func (m Mask) All() bool { return m.kind == maskAll }

// End returns the first chunk behind the mask.
func (m Mask) End() int { return m.First + m.N }

// Has reports whether chunk i is in the mask.
func (m Mask) Has(i int) bool {
	if i < m.First || i >= m.First+m.N {
		return false
	}
	switch m.kind {
	case maskAll:
		return true
	case maskNone:
		return false
	}
	if m.period > 0 && i >= m.shift && (i-m.shift)%m.period >= m.period-m.keep {
		return true
	}
	for _, w := range m.windows {
		if i >= w[0] && i < w[1] {
			return true
		}
	}
	return false
}

// Count returns how many chunks are in the mask.
func (m Mask) Count() int {
	switch m.kind {
	case maskAll:
		return m.N
	case maskNone:
		return 0
	}
	n := 0
	for i := m.First; i < m.End(); i++ {
		if m.Has(i) {
			n++
		}
	}
	return n
}
