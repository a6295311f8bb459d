package expect

import "github.com/mooncake-sidecar/sidecar/bench/trace"

// nobody owns a prefix that is not there.
const nobody = -1

// Tree holds prompts by their blocks. The same id behind another prefix is
// another block, as in an engine.
type Tree struct {
	engineBlock, scaledBlock int
	next                     map[step]int32
	nodes                    []node
}

// step leads from a node to the one behind it.
type step struct {
	parent int32
	id     int64
}

// node is a block behind a prefix: the most tokens of it that a prompt has, whose
// prompt that is, and the most of any other prompt.
type node struct {
	most, second int32
	owner        int32
}

// NewTree holds prompts of blocks of scaledBlock tokens, for an engine that shares
// blocks of engineBlock tokens.
// REQUIRES: scaledBlock is a multiple of engineBlock.
func NewTree(engineBlock, scaledBlock int) *Tree {
	return &Tree{engineBlock: engineBlock, scaledBlock: scaledBlock, next: map[step]int32{}}
}

// Add adds a prompt of so many tokens. owner, which is not negative, names it to
// Cached; it is added once.
func (t *Tree) Add(owner int, r *trace.Request, tokens int) {
	parent := int32(nobody)
	for _, id := range r.HashIDs {
		here := int32(min(tokens, t.scaledBlock))
		tokens -= int(here)
		at, known := t.next[step{parent, id}]
		if !known {
			at = int32(len(t.nodes))
			t.next[step{parent, id}] = at
			t.nodes = append(t.nodes, node{owner: nobody})
		}
		if n := &t.nodes[at]; here > n.most {
			n.most, n.second, n.owner = here, n.most, int32(owner)
		} else {
			n.second = max(n.second, here)
		}
		parent = at
	}
}

// Cached is how many of a prompt's tokens the prompts of others cover.
func (t *Tree) Cached(owner int, r *trace.Request, tokens int) int {
	covered, left, parent := 0, tokens, int32(nobody)
	for _, id := range r.HashIDs {
		at, known := t.next[step{parent, id}]
		if !known {
			break
		}
		n := &t.nodes[at]
		there := int(n.most)
		if n.owner == int32(owner) {
			there = int(n.second)
		}
		here := min(there, left, t.scaledBlock)
		covered += here
		if here < t.scaledBlock {
			break
		}
		left -= here
		parent = at
	}
	return min(covered, tokens-1) / t.engineBlock * t.engineBlock
}
