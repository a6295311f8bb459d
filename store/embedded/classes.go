package embedded

import "github.com/mooncake-sidecar/sidecar/internal/evict"

// chunkKind is what a victim may be asked by: the size of its slots, who owns
// it, and whether it is pinned softly.
type chunkKind struct {
	slotBytes uint32
	namespace uint16
	tag       uint16
	soft      bool
}

// sharedClass is the class of all kinds that came when no other was left. A
// victim of it must be looked at.
const sharedClass = evict.MaxClasses - 1

// classTable numbers kinds for the policy, in the order in which they come, and
// knows which numbers a question means. A kind keeps its number: there are as
// many as slot sizes times owners, which are few; a store of many tenants has
// most of them in the shared class.
type classTable struct {
	byKind map[chunkKind]uint8
	kinds  []chunkKind // by class, without the shared one
}

func newClassTable() classTable { return classTable{byKind: map[chunkKind]uint8{}} }

// class returns the number of a kind.
func (t *classTable) class(k chunkKind) uint8 {
	c, known := t.byKind[k]
	if known {
		return c
	}
	if len(t.kinds) == sharedClass {
		return sharedClass
	}
	c = uint8(len(t.kinds))
	t.byKind[k] = c
	t.kinds = append(t.kinds, k)
	return c
}

// among returns the classes that have chunks of which match may be true. Every
// chunk of them is to be checked again if the shared class is among them.
func (t *classTable) among(match func(*chunkKind) bool) uint64 {
	var classes uint64
	for c := range t.kinds {
		if match(&t.kinds[c]) {
			classes |= 1 << c
		}
	}
	if len(t.kinds) == sharedClass {
		classes |= 1 << sharedClass
	}
	return classes
}
