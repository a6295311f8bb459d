package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// FormatVersion is the version of the segment's format. A segment of another
// version is not adopted: the store starts empty and says so.
const FormatVersion = 1

const (
	headerBytes = 4096

	maxSessions    = 256
	sessionBytes   = 32
	maxNamespaces  = 128
	namespaceBytes = 16 << 10
	slabEntryBytes = 8
	recordBytes    = 64
	slotEntryBytes = 16

	// minSlotBytes bounds the slot table: one entry for every 4 KiB of data.
	minSlotBytes = 4 << 10
	// slotAlign keeps shards on cache lines of their own.
	slotAlign = 64
	// bytesPerRecord sizes the record table: one record for every 16 KiB.
	bytesPerRecord = 16 << 10
	minSlabBytes   = 2 << 20
	maxSlabBytes   = 1 << 30
	pageBytes      = 4096
)

var (
	magic      = [8]byte{'M', 'C', 'S', 'I', 'D', 'S', 'E', 'G'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

// ErrSegmentTooSmall reports a store that can't hold a single slab.
var ErrSegmentTooSmall = errors.New("store is too small")

// ErrForeignSegment reports memory that is no segment of this version.
var ErrForeignSegment = errors.New("not a segment of this version")

// Layout is the geometry of a segment, fixed when it is made.
type Layout struct {
	UUID      [16]byte
	SlabBytes uint64
	Slabs     uint32
	Records   uint32
	// SlotsPerSlab is the room in the slot table for one slab.
	SlotsPerSlab uint32

	sessionsAt, namespacesAt, slabsAt, recordsAt, slotsAt uint64
	// DataOffset is where the data area begins, FileBytes where it ends.
	DataOffset uint64
	FileBytes  uint64
}

// NewLayout plans a segment with room for dataBytes of shards.
func NewLayout(uuid [16]byte, dataBytes uint64) (Layout, error) {
	if dataBytes < minSlabBytes {
		return Layout{}, fmt.Errorf("%w: %d bytes, at least %d are needed; raise store_bytes", ErrSegmentTooSmall, dataBytes, minSlabBytes)
	}
	slab := uint64(minSlabBytes)
	for slab < maxSlabBytes && slab*64 < dataBytes {
		slab *= 2
	}
	l := Layout{UUID: uuid, SlabBytes: slab, Slabs: uint32(dataBytes / slab), SlotsPerSlab: uint32(slab / minSlotBytes)}
	l.Records = uint32(min(max(uint64(l.Slabs)*slab/bytesPerRecord, 1024), 1<<30))
	l.place()
	return l, nil
}

// MaxShardBytes is the longest shard that can be placed.
func (l *Layout) MaxShardBytes() uint64 { return l.SlabBytes }

// MetadataBytes is the length of everything before the data area.
func (l *Layout) MetadataBytes() uint64 { return l.DataOffset }

// SlabOffset returns where a slab begins in the file.
func (l *Layout) SlabOffset(slab uint32) uint64 { return l.DataOffset + uint64(slab)*l.SlabBytes }

func (l *Layout) place() {
	at := uint64(headerBytes)
	next := func(n uint64) uint64 {
		here := at
		at = (at + n + pageBytes - 1) / pageBytes * pageBytes
		return here
	}
	l.sessionsAt = next(maxSessions * sessionBytes)
	l.namespacesAt = next(maxNamespaces * namespaceBytes)
	l.slabsAt = next(uint64(l.Slabs) * slabEntryBytes)
	l.recordsAt = next(uint64(l.Records) * recordBytes)
	l.slotsAt = next(uint64(l.Slabs) * uint64(l.SlotsPerSlab) * slotEntryBytes)
	at = (at + minSlabBytes - 1) / minSlabBytes * minSlabBytes
	l.DataOffset = at
	l.FileBytes = at + uint64(l.Slabs)*l.SlabBytes
}

// Header fields by offset. The CRC covers all before it.
const (
	hdrVersion  = 8
	hdrUUID     = 16
	hdrSlab     = 32
	hdrSlabs    = 40
	hdrRecords  = 44
	hdrSlots    = 48
	hdrBytes    = 56
	hdrCRC      = 64
	hdrIncarn   = 72
	hdrPrepared = 80
)

// writeHeader makes mem a segment of the layout. The rest of mem is zero.
func (l *Layout) writeHeader(mem []byte) {
	copy(mem, magic[:])
	le.PutUint32(mem[hdrVersion:], FormatVersion)
	copy(mem[hdrUUID:], l.UUID[:])
	le.PutUint64(mem[hdrSlab:], l.SlabBytes)
	le.PutUint32(mem[hdrSlabs:], l.Slabs)
	le.PutUint32(mem[hdrRecords:], l.Records)
	le.PutUint32(mem[hdrSlots:], l.SlotsPerSlab)
	le.PutUint64(mem[hdrBytes:], l.FileBytes)
	le.PutUint32(mem[hdrCRC:], crc32.Checksum(mem[:hdrCRC], castagnoli))
}

// ReadLayout reads the layout of the segment in mem, of which the file has
// fileBytes. mem may be just the first page.
func ReadLayout(mem []byte, fileBytes uint64) (Layout, error) {
	if len(mem) < headerBytes {
		return Layout{}, fmt.Errorf("%w: %d bytes are too few for a header", ErrForeignSegment, len(mem))
	}
	if [8]byte(mem[:8]) != magic {
		return Layout{}, fmt.Errorf("%w: no magic number", ErrForeignSegment)
	}
	if v := le.Uint32(mem[hdrVersion:]); v != FormatVersion {
		return Layout{}, fmt.Errorf("%w: format %d, this build reads %d", ErrForeignSegment, v, FormatVersion)
	}
	if crc32.Checksum(mem[:hdrCRC], castagnoli) != le.Uint32(mem[hdrCRC:]) {
		return Layout{}, fmt.Errorf("%w: header checksum", ErrForeignSegment)
	}
	l := Layout{
		UUID:      [16]byte(mem[hdrUUID : hdrUUID+16]),
		SlabBytes: le.Uint64(mem[hdrSlab:]), Slabs: le.Uint32(mem[hdrSlabs:]),
		Records: le.Uint32(mem[hdrRecords:]), SlotsPerSlab: le.Uint32(mem[hdrSlots:]),
	}
	sane := l.SlabBytes >= minSlabBytes && l.SlabBytes <= maxSlabBytes && bits.OnesCount64(l.SlabBytes) == 1 &&
		l.Slabs > 0 && l.Slabs < 1<<24 && l.Records > 0 && l.Records <= 1<<30 && uint64(l.SlotsPerSlab) == l.SlabBytes/minSlotBytes
	if !sane {
		return Layout{}, fmt.Errorf("%w: geometry out of range", ErrForeignSegment)
	}
	l.place()
	if l.FileBytes != le.Uint64(mem[hdrBytes:]) || l.FileBytes != fileBytes {
		return Layout{}, fmt.Errorf("%w: %d bytes, the header asks for %d", ErrForeignSegment, fileBytes, l.FileBytes)
	}
	return l, nil
}

// Record states. A record of state recFree, or whose CRC does not fit, is not
// there.
const (
	recFree    = 0
	recPartial = 1
	recActive  = 2
)

// noSlot ends a chunk's list of slots.
const noSlot = ^uint32(0)

// record is a chunk as it stands in the record table.
type record struct {
	hash      kv.Hash
	parent    uint64 // key digest of the predecessor, 0 for none
	shards    uint64 // bitmap of the shards present
	namespace uint16
	group     uint16
	depth     uint32 // at most 24 bits
	state     uint8
	slot      uint32 // the first of the chunk's slots
}

const maxDepth = 1<<24 - 1

func (s *segment) readRecord(id uint32) (record, bool) {
	b := s.mem[s.recordsAt+uint64(id)*recordBytes:][:recordBytes]
	state := uint8(le.Uint32(b[52:]) >> 24)
	if state != recPartial && state != recActive {
		return record{}, false
	}
	r := s.peekRecord(id)
	sum, ok := s.recordCRC(b, r.slot)
	return r, ok && sum == le.Uint32(b[60:])
}

// peekRecord reads a record that is known to be whole, or one being stored.
func (s *segment) peekRecord(id uint32) record {
	b := s.mem[s.recordsAt+uint64(id)*recordBytes:][:recordBytes]
	return record{
		hash: kv.Hash(b[:32]), parent: le.Uint64(b[32:]), shards: le.Uint64(b[40:]),
		namespace: le.Uint16(b[48:]), group: le.Uint16(b[50:]),
		depth: le.Uint32(b[52:]) & maxDepth, state: uint8(le.Uint32(b[52:]) >> 24), slot: le.Uint32(b[56:]),
	}
}

func (s *segment) writeRecord(id uint32, r *record) {
	b := s.mem[s.recordsAt+uint64(id)*recordBytes:][:recordBytes]
	var w [recordBytes]byte
	copy(w[:], r.hash[:])
	le.PutUint64(w[32:], r.parent)
	le.PutUint64(w[40:], r.shards)
	le.PutUint16(w[48:], r.namespace)
	le.PutUint16(w[50:], r.group)
	le.PutUint32(w[52:], r.depth&maxDepth|uint32(r.state)<<24)
	le.PutUint32(w[56:], r.slot)
	sum, ok := s.recordCRC(w[:], r.slot)
	if !ok {
		panic("BUG: a chunk's list of slots has no end")
	}
	le.PutUint32(w[60:], sum)
	copy(b, w[:])
}

// recordCRC sums a record and the entries of its slots, so that a new record
// never stands over an old slot's checksum, whatever order the writes arrived
// in. False: the list of slots leads nowhere.
func (s *segment) recordCRC(b []byte, slot uint32) (uint32, bool) {
	sum := crc32.Checksum(b[:60], castagnoli)
	for range kv.MaxShards {
		if slot == noSlot {
			break
		}
		if uint64(slot) >= uint64(s.Slabs)*uint64(s.SlotsPerSlab) {
			return 0, false
		}
		entry := s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes]
		sum = crc32.Update(sum, castagnoli, entry)
		slot = le.Uint32(entry[4:])
	}
	return sum, slot == noSlot
}

func (s *segment) clearRecord(id uint32) {
	clear(s.mem[s.recordsAt+uint64(id)*recordBytes:][:recordBytes])
}

// slotEntry describes a slot that is in use by a chunk.
type slotEntry struct {
	checksum uint32 // CRC-32C of the shard's bytes
	next     uint32 // next slot of the chunk, noSlot for none
	record   uint32
	shard    uint8
}

const slotMark = 0x51

func (s *segment) readSlot(slot uint32) (slotEntry, bool) {
	b := s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes]
	return slotEntry{checksum: le.Uint32(b), next: le.Uint32(b[4:]), record: le.Uint32(b[8:]), shard: b[12]}, b[13] == slotMark
}

func (s *segment) writeSlot(slot uint32, e *slotEntry) {
	b := s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes]
	le.PutUint32(b, e.checksum)
	le.PutUint32(b[4:], e.next)
	le.PutUint32(b[8:], e.record)
	b[12], b[13] = e.shard, slotMark
}

func (s *segment) clearSlot(slot uint32) {
	clear(s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes])
}

// slabClass reads the slot size of a slab, 0 for a slab that is free.
func (s *segment) slabClass(slab uint32) uint32 {
	return le.Uint32(s.mem[s.slabsAt+uint64(slab)*slabEntryBytes:])
}

func (s *segment) setSlabClass(slab, slotBytes uint32) {
	le.PutUint32(s.mem[s.slabsAt+uint64(slab)*slabEntryBytes:], slotBytes)
}

// slotOffset returns a slot's offset in the data area.
func (s *segment) slotOffset(slot, slotBytes uint32) uint64 {
	return uint64(slot/s.SlotsPerSlab)*s.SlabBytes + uint64(slot%s.SlotsPerSlab)*uint64(slotBytes)
}
