package coordinator

// run is what a rule found: chunks [0, n) of the group are covered by the hit,
// and [first, n) of them must be loaded. The chunks before first are not needed.
type run struct {
	first, n int
	tokens   int
}

// fullHit is the leading run of chunks. With fine-grained hits the chunk behind
// the run may be stored under a hash boundary inside it: the longest one counts.
func (f *finder) fullHit(m *mergedGroup, maxTokens int, drop bool) run {
	n := min(maxTokens/m.block, f.numHashes/m.scale)
	n = f.leadingRun(m, n)
	tokens := n * m.block
	if f.align < m.block {
		for i := min((n+1)*m.scale-1, maxTokens/f.align, f.numHashes) - 1; i >= n*m.scale; i-- {
			if f.present(m, i, -1) {
				tokens = (i + 1) * f.align
				break
			}
		}
	}
	if drop && tokens > 0 {
		tokens -= min(f.align, m.block)
	}
	tokens -= tokens % f.align
	return run{n: ceilDiv(tokens, m.block), tokens: tokens}
}

// leadingRun returns how many of the first n chunks are there without a gap.
// This is the loop that most lookups spend their time in.
func (f *finder) leadingRun(m *mergedGroup, n int) int {
	if f.exists == nil {
		return n
	}
	exists, scale := f.exists, m.scale
	limit := min(n, f.bound/scale)
	n = limit
	for _, g := range m.ids {
		end := n * scale
		for index := scale - 1; index < end; index += scale {
			if exists(g, index) != present {
				n = index / scale
				break
			}
		}
	}
	if n < limit {
		f.present(m, (n+1)*m.scale-1, n) // takes note of a pending answer
	}
	return n
}

// windowHit is the rightmost run of chunks that fills the window and ends on the
// alignment. A shorter run counts when it begins at the first chunk.
func (f *finder) windowHit(m *mergedGroup, maxTokens int, drop bool) run {
	need := contiguous(m.window, m.block, drop)
	shift := 1
	if drop {
		shift = 0
	}
	found, first, n := false, 0, 0
	length := 0
	for i := maxTokens/m.block - 1; i >= 0; i-- {
		if !f.present(m, (i+1)*m.scale-1, i) {
			length = 0
			continue
		}
		if length == 0 && (i+shift)*m.block%f.align != 0 && m.block != f.align {
			continue
		}
		length++
		if length >= need {
			found, first, n = true, i, i+length
			break
		}
	}
	if !found {
		n = f.alignedDown(m, length)
	}
	if drop && n > 0 {
		n = f.alignedDown(m, n-1)
	}
	return run{first: min(first, n), n: n, tokens: n * m.block}
}

// alignedDown shortens n chunks until they end on the alignment.
func (f *finder) alignedDown(m *mergedGroup, n int) int {
	if m.block == f.align {
		return n
	}
	for n*m.block%f.align != 0 {
		n--
	}
	return n
}

// contiguous returns how many chunks in a row a window needs before a boundary,
// one more where the last is going to be dropped.
func contiguous(window, block int, eagle bool) int {
	need := ceilDiv(window-1, block)
	if eagle {
		need++
	}
	return need
}

// chunkedHit counts everything before the attention chunk of maxTokens as given
// and goes on with the leading run inside it.
func (f *finder) chunkedHit(m *mergedGroup, maxTokens int) run {
	first := maxTokens / m.window * m.window / m.block
	n := first
	for n < maxTokens/m.block && f.present(m, (n+1)*m.scale-1, n) {
		n++
	}
	return run{first: first, n: n, tokens: n * m.block}
}

// mambaHit is the rightmost state: one chunk, which stands for all before it. A
// state is never dropped for the drafter, which has no recurrent layers.
func (f *finder) mambaHit(m *mergedGroup, maxTokens int) run {
	if f.align < m.block {
		for i := min(maxTokens/f.align, f.numHashes) - 1; i >= 0; i-- {
			if f.present(m, i, -1) {
				chunk := i / m.scale
				return run{first: chunk, n: chunk + 1, tokens: (i + 1) * f.align}
			}
		}
		return run{}
	}
	for i := maxTokens/m.block - 1; i >= 0; i-- {
		if !f.present(m, (i+1)*m.scale-1, i) {
			continue
		}
		if m.block == f.align || (i+1)*m.block%f.align == 0 {
			return run{first: i, n: i + 1, tokens: (i + 1) * m.block}
		}
	}
	return run{}
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
