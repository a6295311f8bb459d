package cache

import (
	"errors"
	"fmt"
	"io"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// ErrTrace: the requests of a trace contradict each other.
var ErrTrace = errors.New("not a trace of prefixes")

// Trace is a trace in memory, its blocks numbered by first appearance.
type Trace struct {
	requests []request
	blocks   []uint32 // of all requests, one after the other
	chain    []link   // by block number
	// Tokens are those of all prompts.
	Tokens int64
}

type request struct {
	begin, end int // in Trace.blocks
	tokens     int64
}

// link is a block's place in its chain.
type link struct {
	id     int64
	parent uint32 // none for a root
	depth  uint32
}

const none = ^uint32(0)

// Requests is their number.
func (t *Trace) Requests() int { return len(t.requests) }

// Blocks is how many blocks all requests ask for together.
func (t *Trace) Blocks() int { return len(t.blocks) }

// Unique is how many different blocks there are.
func (t *Trace) Unique() int { return len(t.chain) }

// Read reads a trace, which errors call name. An id stands for a prefix, so that
// it must always follow the same one.
func Read(in io.Reader, name string) (*Trace, error) {
	t := &Trace{}
	numbers := map[int64]uint32{}
	r := trace.NewReader(in, name)
	for {
		next, err := r.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		begin, parent := len(t.blocks), none
		for depth, id := range next.HashIDs {
			number, known := numbers[id]
			if !known {
				number = uint32(len(t.chain))
				numbers[id] = number
				t.chain = append(t.chain, link{id: id, parent: parent, depth: uint32(depth)})
			} else if l := &t.chain[number]; l.parent != parent {
				return nil, fmt.Errorf("%s:%d: %w: field \"hash_ids\": id %d follows other blocks than before", name, r.Line(), ErrTrace, id)
			}
			t.blocks = append(t.blocks, number)
			parent = number
		}
		t.requests = append(t.requests, request{begin: begin, end: len(t.blocks), tokens: next.InputTokens})
		t.Tokens += next.InputTokens
	}
}
