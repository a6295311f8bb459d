package disk

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// bornChunk is a chunk of the model.
type bornChunk struct {
	chunk Chunk
	birth uint64
	void  bool
}

// TestRemovalsAgainstModel: a chunk is void if and only if a removal that came
// after its birth names it, through snapshots, and when what no chunk needs any
// more is forgotten.
func TestRemovalsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newRemovals(1)
		var chunks []*bornChunk
		spaces, tags := [][32]byte{{16}, {32}}, []string{"", "a", "b"}
		voidAll := func(names func(c *Chunk) bool) {
			for _, c := range chunks {
				c.void = c.void || names(&c.chunk)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			space, tag := rapid.SampledFrom(spaces).Draw(t, "space"), rapid.SampledFrom(tags).Draw(t, "tag")
			key := Key{Namespace: space, Hash: [32]byte{byte(rapid.IntRange(1, 4).Draw(t, "hash"))}}
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				l.addWide(namespaceMark(&space))
				voidAll(func(c *Chunk) bool { return c.Namespace == space })
			case 1:
				l.addWide(tagMark(tag))
				voidAll(func(c *Chunk) bool { return c.Tag == tag })
			case 2:
				l.addWide(taggedMark(&space, tag))
				voidAll(func(c *Chunk) bool { return c.Tag == tag && c.Namespace == space })
			case 3:
				l.add(chunkMark(keyOf(&key)))
				voidAll(func(c *Chunk) bool { return c.Key == key })
			case 4:
				l.add(taggedChunkMark(keyOf(&key), tag))
				voidAll(func(c *Chunk) bool { return c.Key == key && c.Tag == tag })
			case 5:
				l.addAll()
				voidAll(func(*Chunk) bool { return true })
			case 6: // the oldest chunks are overwritten
				chunks = chunks[min(len(chunks), rapid.IntRange(0, 5).Draw(t, "gone")):]
				lowest := l.count
				for _, c := range chunks {
					lowest = min(lowest, c.birth)
				}
				l.forget(lowest)
			case 7:
				note := l.note(true)
				again, err := decodeRemovals(note.encode())
				if err != nil {
					t.Fatal(err)
				}
				l = again
			default:
				chunks = append(chunks, &bornChunk{chunk: Chunk{Key: key, Tag: tag}, birth: l.count})
			}
			for _, c := range chunks {
				if l.counts(&c.chunk, c.birth) == c.void {
					t.Fatalf("%+v, void %v, by %+v", c.chunk, c.void, l)
				}
				if wide := c.birth < l.wide && c.birth < l.threshold(&c.chunk.Namespace, c.chunk.Tag); wide && !c.void {
					t.Fatalf("%+v is below the threshold", c.chunk)
				}
			}
		}
	})
}

// TestRemovalsHaveBounds: beyond them the oldest chunks go, and none comes back.
func TestRemovalsHaveBounds(t *testing.T) {
	l := newRemovals(1)
	var first, last Chunk
	for i := range uint64(maxRemovalLines * 3 / 2) {
		last = Chunk{Key: Key{Hash: [32]byte{byte(i), byte(i >> 8), byte(i >> 16)}}}
		l.add(chunkMark(keyOf(&last.Key)))
		if i == 0 {
			first = last
		}
		if len(l.lines) > maxRemovalLines {
			t.Fatalf("%d lines", len(l.lines))
		}
	}
	if l.counts(&first, 0) || l.counts(&last, l.count-1) {
		t.Error("what was removed counts again")
	}
	if l.floor < maxRemovalLines/2 || l.floor > l.count-maxRemovalLines/4 || l.wide < l.floor {
		t.Errorf("a floor of %d after %d removals", l.floor, l.count)
	}
	if !l.counts(&first, l.floor) {
		t.Error("what was stored again does not count")
	}
	marks := make([]mark, maxRemovalLines+1)
	for i := range marks {
		marks[i] = markOf('x', []byte{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	l.add(marks...)
	if other := (Chunk{Tag: "other"}); l.counts(&other, l.floor-1) || len(l.lines) > maxRemovalLines {
		t.Errorf("%d lines after many at once", len(l.lines))
	}
}

// TestSnapshotsStay: what was taken for writing is not changed by what comes
// later.
func TestSnapshotsStay(t *testing.T) {
	l := newRemovals(1)
	for i := range byte(10) {
		l.add(markOf('x', []byte{i}))
	}
	note := l.note(true)
	before := slices.Clone(note.lines)
	for i := range byte(20) {
		l.add(markOf('x', []byte{i}))
	}
	l.forget(15)
	l.add(markOf('y'))
	if !reflect.DeepEqual(before, note.lines) {
		t.Error("the snapshot has changed")
	}
}

// TestHalfOfTheOldest: of a list that is too long the older half goes, in whatever
// order its lines came.
func TestHalfOfTheOldest(t *testing.T) {
	l := newRemovals(1)
	l.count = 10 * maxRemovalLines
	word := func(i uint64) mark { return chunkMark([2]uint64{i, 2}) }
	for i := range uint64(maxRemovalLines) {
		// The middle of the lines has the lowest numbers.
		l.set(word(i), (i+maxRemovalLines/2)%maxRemovalLines+1)
	}
	l.add(word(maxRemovalLines))
	if n := len(l.lines); n < maxRemovalLines/3 || n > maxRemovalLines*2/3 {
		t.Errorf("%d lines of %d are left", n, maxRemovalLines)
	}
}
