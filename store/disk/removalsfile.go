package disk

import (
	"fmt"
	"hash/crc32"
	"math"
)

const (
	removalsHead      = 48
	removalLineBytes  = 24
	voidRegionBytes   = 4
	maxRemovalsBytes  = removalsHead + maxRemovalLines*removalLineBytes + maxRegions*voidRegionBytes + 4
	removalsLinesAt   = 12 // u32
	removalsVoidAt    = 16 // u32
	removalsTheirFile = 24
	removalsCountAt   = 32
	removalsFloorAt   = 40
)

var removalsMagic = [8]byte{'M', 'C', 'S', 'D', 'R', 'E', 'M', 0}

// removalsNote is what the file of removals says: a snapshot.
type removalsNote struct {
	identity, count, floor uint64
	lines                  []removalLine
	void                   []uint32
}

// note takes a snapshot. It does not copy the lines, of which there may be many.
// all: with the regions that are not in the file yet.
func (l *removals) note(all bool) removalsNote {
	n := removalsNote{identity: l.identity, count: l.count, floor: l.floor, lines: l.lines[:len(l.lines):len(l.lines)]}
	for id, noted := range l.void {
		if noted || all {
			l.void[id] = true
			n.void = append(n.void, id)
		}
	}
	return n
}

func (n *removalsNote) encode() []byte {
	b := make([]byte, removalsHead, removalsHead+len(n.lines)*removalLineBytes+len(n.void)*voidRegionBytes+4)
	copy(b, removalsMagic[:])
	le.PutUint32(b[8:], FormatVersion)
	le.PutUint32(b[removalsLinesAt:], uint32(len(n.lines)))
	le.PutUint32(b[removalsVoidAt:], uint32(len(n.void)))
	le.PutUint64(b[removalsTheirFile:], n.identity)
	le.PutUint64(b[removalsCountAt:], n.count)
	le.PutUint64(b[removalsFloorAt:], n.floor)
	for i := range n.lines {
		b = append(b, n.lines[i].mark[:]...)
		b = le.AppendUint64(b, n.lines[i].number)
	}
	for _, id := range n.void {
		b = le.AppendUint32(b, id)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeRemovals(b []byte) (removals, error) {
	if len(b) < removalsHead+4 || [8]byte(b[:8]) != removalsMagic || le.Uint32(b[8:]) != FormatVersion {
		return removals{}, fmt.Errorf("%w: removals", errFormat)
	}
	lines, void := int(le.Uint32(b[removalsLinesAt:])), int(le.Uint32(b[removalsVoidAt:]))
	if lines > maxRemovalLines || void > maxRegions || len(b) != removalsHead+lines*removalLineBytes+void*voidRegionBytes+4 {
		return removals{}, fmt.Errorf("%w: %d removals and %d regions in %d bytes", errFormat, lines, void, len(b))
	}
	if crc32.Checksum(b[:len(b)-4], castagnoli) != le.Uint32(b[len(b)-4:]) {
		return removals{}, fmt.Errorf("%w: checksum of the removals", errFormat)
	}
	l := newRemovals(le.Uint64(b[removalsTheirFile:]))
	l.count, l.floor = le.Uint64(b[removalsCountAt:]), le.Uint64(b[removalsFloorAt:])
	if l.count >= math.MaxUint32 || l.floor > l.count {
		return removals{}, fmt.Errorf("%w: %d removals, a floor of %d", errFormat, l.count, l.floor)
	}
	l.wide = l.count // which of them are wide is not said
	at := removalsHead
	for range lines {
		number := le.Uint64(b[at+16:])
		if number > l.count {
			return removals{}, fmt.Errorf("%w: removal %d of %d", errFormat, number, l.count)
		}
		l.set(mark(b[at:at+16]), number)
		at += removalLineBytes
	}
	for range void {
		l.void[le.Uint32(b[at:])] = true
		at += voidRegionBytes
	}
	return l, nil
}
