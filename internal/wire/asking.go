package wire

import "fmt"

const (
	// leastStrides is how many strides a chain must have to be asked about sparsely.
	leastStrides = 2
	// chainEnds is how many hashes at either end of a chain are given.
	chainEnds = 16
)

// Asking is one question about a request, as the shim asks it: by few of its hashes
// at first, by all if need be. It is pure.
type Asking struct {
	Tokens int
	// Hashes stand back to back, HashLen bytes each.
	Hashes  []byte
	HashLen int
	ID      string
	// Stride is what the server takes, 0 (or less than chainEnds): it wants all hashes.
	Stride int

	more  []Run
	whole bool
}

// Frames makes the frames of what to ask now.
func (a *Asking) Frames(seq uint64) [][]byte {
	n := len(a.Hashes) / max(a.HashLen, 1)
	if a.whole = a.whole || a.Stride < chainEnds || n <= leastStrides*a.Stride || n > MaxChainHashes; a.whole {
		return EncodeLookup2(a.Tokens, a.HashLen, a.Hashes, a.ID, seq)
	}
	runs := append([]Run{{0, 1, chainEnds}, {a.Stride - 1, a.Stride, n / a.Stride}, {n - chainEnds, 1, chainEnds}}, a.more...)
	var given []byte
	for _, run := range runs {
		for i := range run.Count {
			at := (run.First + i*run.Step) * a.HashLen
			given = append(given, a.Hashes[at:at+a.HashLen]...)
		}
	}
	return EncodeLookup3(a.Tokens, a.HashLen, n, runs, given, a.ID, seq)
}

// Heard takes the answer. again: there is none yet, and more is to be asked.
func (a *Asking) Heard(reply [][]byte) (again bool, err error) {
	if len(reply) != 2 {
		return false, fmt.Errorf("wire: %w: an answer of %d frames, want 2", ErrMalformed, len(reply))
	}
	_, flags, err := ParseStatus(reply[1])
	if err != nil || flags&FlagMore == 0 {
		return false, err
	}
	from, end, err := ParseGap(reply[0])
	if err != nil {
		return false, err
	}
	if n := len(a.Hashes) / max(a.HashLen, 1); a.whole || end > n {
		return false, fmt.Errorf("wire: %w: hashes %d to %d of %d are wanted", ErrMalformed, from, end, n)
	}
	// Once more with what is wanted, if that is little.
	a.whole = len(a.more) > 0 || end-from > a.Stride
	a.more = append(a.more, Run{from, 1, end - from})
	return true, nil
}
