package embedded

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Record states. A record of state recFree, or whose CRC does not fit, is not
// there.
const (
	recFree    = 0
	recPartial = 1
	recActive  = 2
)

// recordFlags are a record's lasting marks.
type recordFlags uint16

const (
	flagSoftPin recordFlags = 1 << iota // evicted only when nothing else can go
	flagHardPin                         // never evicted
)

// record is a chunk as it stands in the record table.
type record struct {
	hash       kv.Hash
	parent     uint64 // key digest of the predecessor, 0 for none
	namespace  uint16
	generation uint16 // of the namespace, below generations
	group      uint16
	depth      uint32 // at most 24 bits
	state      uint8
	slot       uint32 // the first of the chunk's slots
	saltTag    uint16 // number of the salt tag, 0 for none
	flags      recordFlags
	expires    uint32 // Unix seconds, 0 for never
}

const maxDepth = 1<<24 - 1

// A record's words. Lookups read them while the master writes others, so both
// do it word by word, atomically; see View. What a lookup needs besides the hash
// is in one word.
const (
	recordWords = recordBytes / 8

	wordParent = 4
	wordScope  = 5 // namespace 7 bits, generation 9, group 16, depth 24, state 8
	wordPlace  = 6 // slot 32, salt tag 16, flags 16
	wordEnd    = 7 // expires 32, CRC 32: of all before it, and of the slots' entries
)

// scopeOf is the lower half of a record's scope word.
func scopeOf(namespace, generation, group uint32) uint32 {
	return namespace | generation<<namespaceBits | group<<16
}

const (
	namespaceBits = 7
	// generations are told apart: a generation is the number of resets of the
	// namespace, modulo that.
	generations = 1 << (16 - namespaceBits)
)

// The namespaces' numbers fit.
const _ = uint(1<<namespaceBits - maxNamespaces)

// wordScopeMask leaves the scope of a scope word.
const wordScopeMask = 1<<32 - 1

// stateOf takes the state out of a scope word.
func stateOf(scope uint64) uint8 { return uint8(scope >> 56) }

// recordWord is a word of a record.
func (s *segment) recordWord(id uint32, word int) uint64 {
	return s.records[int(id)*recordWords+word].Load()
}

// hasHash compares a record's hash.
func (s *segment) hasHash(id uint32, hash *kv.Hash) bool {
	w := s.records[int(id)*recordWords:][:recordWords]
	return w[0].Load() == le.Uint64(hash[:]) && w[1].Load() == le.Uint64(hash[8:]) &&
		w[2].Load() == le.Uint64(hash[16:]) && w[3].Load() == le.Uint64(hash[24:])
}

// readRecord reads a record of an adopted segment, if it is whole.
func (s *segment) readRecord(id uint32) (record, bool) {
	if state := stateOf(s.recordWord(id, wordScope)); state != recPartial && state != recActive {
		return record{}, false
	}
	r := s.peekRecord(id)
	sum, ok := s.recordCRC(&r)
	return r, ok && uint64(sum) == s.recordWord(id, wordEnd)>>32
}

// peekRecord reads a record that is known to be whole, or one being stored.
func (s *segment) peekRecord(id uint32) (r record) {
	w := s.records[int(id)*recordWords:][:recordWords]
	for i := range 4 {
		le.PutUint64(r.hash[8*i:], w[i].Load())
	}
	r.parent = w[wordParent].Load()
	scope, place := w[wordScope].Load(), w[wordPlace].Load()
	r.namespace, r.group, r.depth, r.state = uint16(scope)%maxNamespaces, uint16(scope>>16), uint32(scope>>32)&maxDepth, stateOf(scope)
	r.generation = uint16(scope) >> namespaceBits
	r.slot, r.saltTag, r.flags = uint32(place), uint16(place>>32), recordFlags(place>>48)
	r.expires = uint32(w[wordEnd].Load())
	return r
}

// words returns a record's words without the CRC.
func (r *record) words() (w [recordWords]uint64) {
	for i := range 4 {
		w[i] = le.Uint64(r.hash[8*i:])
	}
	w[wordParent] = r.parent
	w[wordScope] = uint64(scopeOf(uint32(r.namespace), uint32(r.generation), uint32(r.group))) | uint64(r.depth&maxDepth)<<32 | uint64(r.state)<<56
	w[wordPlace] = uint64(r.slot) | uint64(r.saltTag)<<32 | uint64(r.flags)<<48
	w[wordEnd] = uint64(r.expires)
	return w
}

// writeRecord writes a record over a free one or over its earlier self. Words
// that stay as they are are not written.
//
// REQUIRES: the entries of its slots are written.
func (s *segment) writeRecord(id uint32, r *record) {
	sum, ok := s.recordCRC(r)
	if !ok {
		panic("BUG: a chunk's list of slots has no end")
	}
	words := r.words()
	words[wordEnd] |= uint64(sum) << 32
	w := s.records[int(id)*recordWords:][:recordWords]
	for i := range words {
		if w[i].Load() != words[i] {
			w[i].Store(words[i])
		}
	}
}

// recordCRC sums a record and the entries of its slots, so that a new record
// never stands over an old slot's checksum, whatever order the writes arrived
// in. False: the list of slots leads nowhere.
func (s *segment) recordCRC(r *record) (uint32, bool) {
	words := r.words()
	var b [recordBytes]byte
	for i, w := range words {
		le.PutUint64(b[8*i:], w)
	}
	sum := crc32.Checksum(b[:recordBytes-4], castagnoli)
	slot := r.slot
	for range kv.MaxShards {
		if slot == noSlot {
			break
		}
		if slot >= s.slots() {
			return 0, false
		}
		entry := s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes]
		sum = crc32.Update(sum, castagnoli, entry)
		slot = unpackLink(binary.LittleEndian.Uint32(entry[4:])).next
	}
	return sum, slot == noSlot
}

// voidRecord makes a record one that no lookup takes for a chunk's. The rest of it
// stays, for those who read it at the moment.
func (s *segment) voidRecord(id uint32) { s.records[int(id)*recordWords+wordScope].Store(0) }

// clearRecord makes a record free.
//
// REQUIRES: it is not in the index.
func (s *segment) clearRecord(id uint32) {
	w := s.records[int(id)*recordWords:][:recordWords]
	for i := range w {
		w[i].Store(0)
	}
}

// setRecordLife changes what is not the chunk's identity: how long it stays, and
// whose it is.
func (s *segment) setRecordLife(id uint32, saltTag uint16, flags recordFlags, expires uint32) {
	r := s.peekRecord(id)
	r.saltTag, r.flags, r.expires = saltTag, flags, expires
	s.writeRecord(id, &r)
}

// recordStep is how many records are made usable at a time, see readyRecords.
const recordStep = 4096

// readyRecords is how many records have memory; those behind must not be touched.
func (s *segment) readyRecords() uint32 { return min(le.Uint32(s.mem[hdrRecReady:]), s.Records) }

func (s *segment) setReadyRecords(n uint32) { le.PutUint32(s.mem[hdrRecReady:], n) }
