package embedded

import "github.com/mooncake-sidecar/sidecar/internal/evict"

// chunkKind is what the policy may be asked for a victim of: the size of its
// slots, and whether it is pinned softly. Owners with quotas have an order of
// their own, see ownerOrder.
type chunkKind struct {
	slotBytes uint32
	soft      bool
}

// sharedClass is the class of all kinds that came when no other was left. A
// victim of it must be looked at.
const sharedClass = evict.MaxClasses - 1

// classTable numbers the kinds that the policy has chunks of, and knows which
// numbers a question means.
type classTable struct {
	byKind map[chunkKind]uint8
	// kinds and chunks are by class. The number of a kind without chunks may become
	// another's.
	kinds  []chunkKind
	chunks [evict.MaxClasses]int
}

func newClassTable() classTable { return classTable{byKind: map[chunkKind]uint8{}} }

// enter counts a chunk of a kind and returns the kind's number.
func (t *classTable) enter(k chunkKind) uint8 {
	c := t.class(k)
	t.chunks[c]++
	return c
}

// leave takes back an enter of the kind, with the number that it had.
func (t *classTable) leave(k chunkKind) {
	c, known := t.byKind[k]
	if !known || t.chunks[c] == 0 {
		c = sharedClass // it came when no other was left
	}
	t.chunks[c]--
}

func (t *classTable) class(k chunkKind) uint8 {
	if c, known := t.byKind[k]; known {
		return c
	}
	if len(t.kinds) < sharedClass {
		t.byKind[k] = uint8(len(t.kinds))
		t.kinds = append(t.kinds, k)
		return t.byKind[k]
	}
	if t.chunks[sharedClass] > 0 {
		return sharedClass // of which this kind may have chunks
	}
	for c := range t.kinds {
		if t.chunks[c] == 0 {
			delete(t.byKind, t.kinds[c])
			t.byKind[k], t.kinds[c] = uint8(c), k
			return uint8(c)
		}
	}
	return sharedClass
}

// among returns the classes that have chunks of which match may be true. Every
// chunk of them is to be checked again if the shared class is among them.
func (t *classTable) among(match func(*chunkKind) bool) uint64 {
	var classes uint64
	for c := range t.kinds {
		if t.chunks[c] > 0 && match(&t.kinds[c]) {
			classes |= 1 << c
		}
	}
	if t.chunks[sharedClass] > 0 {
		classes |= 1 << sharedClass
	}
	return classes
}
