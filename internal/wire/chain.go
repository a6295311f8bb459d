package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// A hash commits to all before it, and a store knows of each chunk which one comes
// before it. So a lookup3 names a chain of hashes by some of them.

const (
	// MaxChainHashes bounds the chain of a lookup3, which is written out in full
	// where it is answered.
	MaxChainHashes = 1 << 18
	// MaxRuns bounds the runs of one question.
	MaxRuns = 16

	runBytes = 12
	gapBytes = 8
)

// Run says which hashes of a chain are given: those of the indices First,
// First+Step and so on, Count of them.
type Run struct{ First, Step, Count int }

// Runs are the runs of a lookup3, as they stand in its frame.
type Runs struct{ data []byte }

// Len returns the number of runs.
func (r Runs) Len() int { return len(r.data) / runBytes }

// At returns run i.
//
// REQUIRES: 0 <= i < r.Len().
func (r Runs) At(i int) Run {
	at := r.data[i*runBytes:][:runBytes]
	return Run{
		First: int(binary.BigEndian.Uint32(at)), Step: int(binary.BigEndian.Uint32(at[4:])), Count: int(binary.BigEndian.Uint32(at[8:])),
	}
}

// parseLookup3 reads the frames of a lookup3: the tag, the token count, the hash
// length, the chain's length, the runs, their hashes, the request's id and the
// sequence number.
func parseLookup3(frames [][]byte) (Request, error) {
	if err := wantFrames(frames, 8); err != nil {
		return Request{}, err
	}
	if len(frames[1]) != 4 || len(frames[2]) != 2 || len(frames[3]) != 4 {
		return Request{}, fmt.Errorf("wire: %w: counts of %d, %d and %d bytes, want 4, 2 and 4", ErrMalformed, len(frames[1]), len(frames[2]), len(frames[3]))
	}
	hashes, err := kv.NewHashBlob(frames[5], int(binary.BigEndian.Uint16(frames[2])))
	if err != nil {
		return Request{}, fmt.Errorf("wire: %w: %w", ErrMalformed, err)
	}
	r := Request{
		Kind: KindLookup3, Tokens: int(binary.BigEndian.Uint32(frames[1])), Hashes: hashes,
		Chain: int(binary.BigEndian.Uint32(frames[3])), Runs: Runs{frames[4]},
	}
	if err := checkRuns(&r, len(frames[4])); err != nil {
		return Request{}, err
	}
	if err := r.named(frames[6], frames[7]); err != nil {
		return Request{}, err
	}
	return r, nil
}

// checkRuns makes sure that every hash has its place in the chain.
func checkRuns(r *Request, frame int) error {
	if r.Chain < 1 || r.Chain > MaxChainHashes || frame%runBytes != 0 || r.Runs.Len() > MaxRuns {
		return fmt.Errorf("wire: %w: a chain of %d hashes and %d bytes of runs, want 1 to %d hashes and at most %d runs of %d bytes",
			ErrMalformed, r.Chain, frame, MaxChainHashes, MaxRuns, runBytes)
	}
	given := 0
	for i := range r.Runs.Len() {
		run := r.Runs.At(i)
		// Each bound keeps the next product small.
		if run.Step < 1 || run.Count < 1 || run.Step > r.Chain || run.Count > r.Chain || run.First+(run.Count-1)*run.Step >= r.Chain {
			return fmt.Errorf("wire: %w: run %d of %d hashes from %d on, %d apart, in a chain of %d", ErrMalformed, i, run.Count, run.First, run.Step, r.Chain)
		}
		given += run.Count
	}
	if given < 1 || given != r.Hashes.Len() {
		return fmt.Errorf("wire: %w: %d hashes for runs of %d", ErrMalformed, r.Hashes.Len(), given)
	}
	return nil
}

// parseSeen reads the frames of a seen: the tag, the hash length and the hashes.
func parseSeen(frames [][]byte) (Request, error) {
	if err := wantFrames(frames, 3); err != nil {
		return Request{}, err
	}
	if len(frames[1]) != 2 {
		return Request{}, fmt.Errorf("wire: %w: a hash length of %d bytes, want 2", ErrMalformed, len(frames[1]))
	}
	hashes, err := kv.NewHashBlob(frames[2], int(binary.BigEndian.Uint16(frames[1])))
	if err != nil {
		return Request{}, fmt.Errorf("wire: %w: %w", ErrMalformed, err)
	}
	return Request{Kind: KindSeen, Hashes: hashes}, nil
}

// EncodeLookup3 makes the frames of a lookup of a chain of which some hashes are
// given: those of the runs, one run behind the other.
//
// REQUIRES: as EncodeLookup; the runs and the hashes go together.
func EncodeLookup3(tokens, hashLen, chain int, runs []Run, hashes []byte, id string, seq uint64) [][]byte {
	var list []byte
	for _, run := range runs {
		for _, n := range [...]int{run.First, run.Step, run.Count} {
			list = binary.BigEndian.AppendUint32(list, uint32(n))
		}
	}
	head := EncodeLookup(tokens, hashLen, hashes)
	return [][]byte{
		[]byte(TagLookup3), head[1], head[2], binary.BigEndian.AppendUint32(nil, uint32(chain)), list, hashes,
		[]byte(id), binary.BigEndian.AppendUint64(nil, seq),
	}
}

// EncodeSeen makes the frames that show which hashes a lookup was about.
//
// REQUIRES: as EncodeLookup.
func EncodeSeen(hashLen int, hashes []byte) [][]byte {
	return [][]byte{[]byte(TagSeen), EncodeLookup(0, hashLen, hashes)[2], hashes}
}

// AppendGap makes the first frame of the answer to a lookup3 that can't be told
// yet (FlagMore): the hashes from an index on up to another are to be given too.
func AppendGap(dst []byte, from, end int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, uint32(from)), uint32(end))
}

// ParseGap reads that frame.
func ParseGap(frame []byte) (from, end int, err error) {
	if len(frame) != gapBytes {
		return 0, 0, fmt.Errorf("wire: %w: a gap of %d bytes, want %d", ErrMalformed, len(frame), gapBytes)
	}
	from, end = int(binary.BigEndian.Uint32(frame)), int(binary.BigEndian.Uint32(frame[4:]))
	if from >= end {
		return 0, 0, fmt.Errorf("wire: %w: a gap from hash %d to hash %d", ErrMalformed, from, end)
	}
	return from, end, nil
}
