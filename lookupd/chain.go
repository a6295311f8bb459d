package lookupd

import (
	"fmt"
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
)

const (
	// chainStride is how far the hashes that a question names are apart, about: what
	// lies between two is found out without the index.
	chainStride = 128
	// chainKeepBytes is how much memory a handler keeps for chains.
	chainKeepBytes = 1 << 20
	// hintHashes is how many hashes a view is told of at a time.
	hintHashes = 64
)

// chain is a question that names some of a request's hashes (lookup3). Of the
// others the store knows: a chunk's record says which chunk comes before it, see
// View.Ancestors. Those are found out as the rules ask for them, so that a miss at
// the beginning costs nothing.
//
// INVARIANT: an answer is given only when the rules have asked for no hash that is
// not known. They are the same rules over the same view, so it is what the whole
// list would have been answered.
type chain struct {
	// group is the one whose chain is followed, and step how many hashes each of its
	// chunks covers; 0 where there is no such group.
	group, step int

	// Of the request at hand.
	length  int      // of a hash
	hashes  []byte   // all of them; those that are not known are anything
	known   []uint64 // a bit each
	n, left int      // hashes in all, and not known
	// sure is a range of the group's hashes that were present when they were found out.
	sure span
	// wanted is what must be known before there can be an answer; empty: there is one.
	wanted span
}

// span is the hashes [from, end).
type span struct{ from, end int }

func (s span) has(i int) bool { return i >= s.from && i < s.end }
func (s span) empty() bool    { return s.from >= s.end }

// joined is both spans where the other one goes on, step by step, where this one
// ends. Else it is this one, unless that is empty: what was said to be there must be
// there to the end of the lookup.
func (s span) joined(other span, step int) span {
	switch {
	case s.empty():
		return other
	case other.from >= s.from && other.from-step < s.end:
		return span{s.from, max(s.end, other.end)}
	}
	return s
}

// strideOf is how far the hashes of an engine's questions are to be apart, 0 where
// a question must have them all.
func strideOf(rules *coordinator.Coordinator) int {
	_, step, ok := rules.ChainGroup()
	if !ok {
		return 0
	}
	return max(chainStride/step, 1) * step
}

func newChain(rules *coordinator.Coordinator) chain {
	group, step, ok := rules.ChainGroup()
	if !ok {
		return chain{}
	}
	return chain{group: group, step: step}
}

// begin takes a question and returns its hashes as if they were all there.
func (c *chain) begin(r *wire.Request) kv.HashBlob {
	c.n, c.left, c.length, c.sure, c.wanted = r.Chain, r.Chain, r.Hashes.HashLen(), span{}, span{}
	size := c.n * c.length
	if cap(c.hashes) < size || cap(c.hashes) > max(size, chainKeepBytes) {
		c.hashes = make([]byte, size)
	}
	c.hashes = c.hashes[:size]
	words := (c.n + 63) / 64
	if cap(c.known) < words {
		c.known = make([]uint64, words)
	}
	c.known = c.known[:words]
	clear(c.known)
	given := r.Hashes.Bytes()
	for i := range r.Runs.Len() {
		run := r.Runs.At(i)
		for at := run.First; run.Count > 0; run.Count-- {
			copy(c.hashes[at*c.length:(at+1)*c.length], given)
			given = given[c.length:]
			c.learn(at)
			at += run.Step
		}
	}
	return c.blob(c.n)
}

// blob is the first n hashes.
func (c *chain) blob(n int) kv.HashBlob {
	hashes, err := kv.NewHashBlob(c.hashes[:n*c.length], c.length)
	if err != nil {
		panic("BUG: a chain's hashes are none: " + err.Error())
	}
	return hashes
}

// told is the hashes that a view may be told of: those from i on which are known.
func (c *chain) told(i int) kv.HashBlob { return c.blob(min(c.next(i, false), i+hintHashes)) }

// mustKnow makes sure that an answer depends on no hash but those that are known.
func (c *chain) mustKnow(i int) {
	if !c.knows(i) {
		panic(fmt.Sprintf("BUG: an answer depends on hash %d of %d, which is not known", i, c.n))
	}
}

func (c *chain) knows(i int) bool { return c.known[i/64]>>(i%64)&1 != 0 }

func (c *chain) learn(i int) {
	if !c.knows(i) {
		c.left--
		c.known[i/64] |= 1 << (i % 64)
	}
}

// next returns the first index from i on that is known, or is not; n if there is
// none.
func (c *chain) next(i int, known bool) int {
	for i < c.n {
		word := c.known[i/64]
		if !known {
			word = ^word
		}
		if word >>= i % 64; word != 0 {
			return min(i+bits.TrailingZeros64(word), c.n)
		}
		i = (i/64 + 1) * 64
	}
	return c.n
}

// reach finds out the hashes before the next chunk of the group that is known, down
// to one that is. It reports whether the one at i is among them.
func (c *chain) reach(view View, i int) bool {
	if c.step == 0 {
		return false // whoever asks was told so
	}
	at := c.next(i, true)
	for at < c.n && (at+1)%c.step != 0 {
		at = c.next(at+1, true)
	}
	if at == c.n {
		return false
	}
	count := 0
	for before := at - c.step; before >= 0 && !c.knows(before); before -= c.step {
		count++
	}
	found, present, stray := view.Ancestors(c.group, c.hashes, c.length, at, c.step, count)
	for j := range found {
		c.learn(at - (j+1)*c.step)
	}
	if present > 0 {
		c.sure = c.sure.joined(span{at - (present-1)*c.step, at + 1}, c.step)
	}
	if stray {
		c.wanted = span{0, c.n}
	}
	return c.knows(i)
}

// want notes that there is no answer without the hash at i, and those beside it
// that are not known either.
func (c *chain) want(i int) {
	if !c.wanted.empty() {
		return
	}
	from := i
	for from > 0 && !c.knows(from-1) {
		from--
	}
	c.wanted = span{from, c.next(i, true)}
}

// shows tells whether all that is to be shown of the hashes is known: one in every
// stride bytes, from the byte first on.
func (c *chain) shows(first, stride int) bool {
	if c.left == 0 {
		return true
	}
	for at := first; at < len(c.hashes); at += stride {
		if !c.knows(at / c.length) {
			return false
		}
	}
	return true
}

// chained answers the coordinator's probes of a lookup3. Once there is a hash
// that is not known, the rest does not matter.
func (h *handler) chained(group, hashIndex int) kv.Existence {
	c := &h.chain
	ours := group == c.group
	if ours && c.sure.has(hashIndex) {
		return kv.Present
	}
	if !c.wanted.empty() {
		return kv.Absent
	}
	if !c.knows(hashIndex) {
		if !c.reach(h.view, hashIndex) {
			c.want(hashIndex)
			return kv.Absent
		}
		if ours && c.sure.has(hashIndex) {
			return kv.Present
		}
	}
	if a := &h.ahead; ours && a.group == group && hashIndex > a.next {
		a.next = hashIndex // what is between was not looked for by its hash
	}
	return h.existence(group, hashIndex)
}

// askMore answers that there is no answer yet, and what must be known for one.
func (h *handler) askMore(r *wire.Request) [][]byte {
	h.counters.more.Add(1)
	h.reply[0] = wire.AppendGap(h.reply[0][:0], h.chain.wanted.from, h.chain.wanted.end)
	h.reply[1] = wire.AppendStatus(h.reply[1][:0], r.Seq, wire.FlagMore)
	h.frames = append(h.frames[:0], h.reply[0], h.reply[1])
	return h.frames
}
