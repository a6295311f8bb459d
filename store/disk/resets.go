package disk

import (
	"fmt"
	"hash/crc32"
	"math"
)

// resetList says which records count: those of a namespace that were handed over
// after its latest reset.
type resetList struct {
	identity uint64 // of the data file
	count    uint64 // resets so far, of all namespaces
	// floor: what was handed over before that many resets does not count, whosever
	// it is.
	floor uint64
	since map[[32]byte]uint64
}

const (
	// maxResets bounds the list; one more reset clears the whole tier instead.
	maxResets      = 1024
	resetLineBytes = 40
	resetsHead     = 40
	maxResetsBytes = resetsHead + maxResets*resetLineBytes + 4
)

var resetsMagic = [8]byte{'M', 'C', 'S', 'D', 'R', 'S', 'T', 0}

func newResetList(identity uint64) resetList {
	return resetList{identity: identity, since: map[[32]byte]uint64{}}
}

// add notes a reset of a namespace.
func (l *resetList) add(digest [32]byte) {
	l.count++
	if _, known := l.since[digest]; !known && len(l.since) == maxResets {
		l.clear()
		return
	}
	l.since[digest] = l.count
}

// clear makes everything that was handed over until now void.
func (l *resetList) clear() {
	l.floor = l.count
	clear(l.since)
}

// counts tells whether a record of the namespace is valid that was handed over
// after so many resets.
func (l *resetList) counts(digest [32]byte, resets uint64) bool {
	return resets >= max(l.floor, l.since[digest])
}

func (l *resetList) encode() []byte {
	b := make([]byte, resetsHead, resetsHead+len(l.since)*resetLineBytes+4)
	copy(b, resetsMagic[:])
	le.PutUint32(b[8:], FormatVersion)
	le.PutUint32(b[12:], uint32(len(l.since)))
	le.PutUint64(b[16:], l.identity)
	le.PutUint64(b[24:], l.count)
	le.PutUint64(b[32:], l.floor)
	for digest, since := range l.since {
		b = append(b, digest[:]...)
		b = le.AppendUint64(b, since)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeResets(b []byte) (resetList, error) {
	if len(b) < resetsHead+4 || [8]byte(b[:8]) != resetsMagic || le.Uint32(b[8:]) != FormatVersion {
		return resetList{}, fmt.Errorf("%w: resets", errFormat)
	}
	n := int(le.Uint32(b[12:]))
	if n > maxResets || len(b) != resetsHead+n*resetLineBytes+4 {
		return resetList{}, fmt.Errorf("%w: %d resets in %d bytes", errFormat, n, len(b))
	}
	if crc32.Checksum(b[:len(b)-4], castagnoli) != le.Uint32(b[len(b)-4:]) {
		return resetList{}, fmt.Errorf("%w: checksum of the resets", errFormat)
	}
	l := newResetList(le.Uint64(b[16:]))
	l.count, l.floor = le.Uint64(b[24:]), le.Uint64(b[32:])
	if l.count >= math.MaxUint32 || l.floor > l.count {
		return resetList{}, fmt.Errorf("%w: %d resets, a floor of %d", errFormat, l.count, l.floor)
	}
	for at := resetsHead; at < len(b)-4; at += resetLineBytes {
		since := le.Uint64(b[at+32:])
		if since > l.count {
			return resetList{}, fmt.Errorf("%w: reset %d of %d", errFormat, since, l.count)
		}
		l.since[[32]byte(b[at:at+32])] = since
	}
	return l, nil
}
