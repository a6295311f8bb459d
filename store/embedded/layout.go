package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
)

// FormatVersion is the version of the segment's format. A segment of another
// version is not adopted: the store starts empty and says so.
//
// 2: a record also has its salt tag, flags and expiry and is read and written by
// words; a slot's entry takes 8 bytes.
// 3: a record says after which reset of its namespace it was stored.
const FormatVersion = 3

const (
	headerBytes = 4096

	maxSessions    = 256
	sessionBytes   = 32
	maxNamespaces  = 128
	namespaceBytes = 16 << 10
	maxTags        = 1024 // salt tags, of which number 0 is none
	tagBytes       = 256
	slabEntryBytes = 8
	// slabNodeAt is where a slab's entry has the number of its NUMA node plus one,
	// 0 for none. In front is the size of its slots.
	slabNodeAt     = 4
	maxNodes       = 1024 // as many as Linux knows
	recordBytes    = 64
	slotEntryBytes = 8

	// leastSlotBytes is the smallest slot of a segment that is not huge, see
	// Layout.MinSlotBytes.
	leastSlotBytes = 4 << 10
	// slotAlign keeps shards on cache lines of their own.
	slotAlign = 64
	// bytesPerRecord sizes the record table: one record for every 32 KiB, which is
	// 16 tokens of 2 KiB.
	bytesPerRecord = 32 << 10
	// maxNumber bounds slot and record numbers: a slot's entry has 25 bits for
	// one, of which 0 stands for an entry that is not in use.
	maxNumber    = 1<<25 - 2
	minSlabBytes = 2 << 20
	// leastSlabs: a store of some size has at least half as many slabs, so that a
	// slot size that is hardly used takes little.
	leastSlabs = 256
	// maxRun bounds how many slabs are cut together.
	maxRun       = 4
	maxSlabBytes = 1 << 30
	pageBytes    = 4096
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

	sessionsAt, namespacesAt, tagsAt, slabsAt, recordsAt, slotsAt uint64
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
	for slab < maxSlabBytes && slab*leastSlabs < dataBytes {
		slab *= 2
	}
	slabs, least := dataBytes/slab, uint64(leastSlotBytes)
	for slabs*(slab/least) > maxNumber {
		if least *= 2; least > slab {
			return Layout{}, fmt.Errorf("store of %d bytes is too large: slots can't be numbered; lower store_bytes", dataBytes)
		}
	}
	l := Layout{UUID: uuid, SlabBytes: slab, Slabs: uint32(slabs), SlotsPerSlab: uint32(slab / least)}
	l.Records = uint32(min(max(slabs*slab/bytesPerRecord, 1024), maxNumber))
	l.place()
	return l, nil
}

// MaxShardBytes is the longest shard that can be placed.
func (l *Layout) MaxShardBytes() uint64 { return uint64(l.longestRun()) * l.SlabBytes }

func (l *Layout) longestRun() uint32 { return min(max(l.Slabs/32, 1), maxRun) }

// runOf is how many slabs are cut together into slots of a size: as few as leave
// at most a 64th over, or else those that leave least.
func (l *Layout) runOf(slotBytes uint32) uint32 {
	best, least := uint32(1), 1.0
	for run := uint32(1); run <= l.longestRun(); run++ {
		bytes := uint64(run) * l.SlabBytes
		slots := bytes / uint64(slotBytes)
		if slots > uint64(l.SlotsPerSlab) {
			break // their numbers would be the next slab's
		}
		left := float64(bytes-slots*uint64(slotBytes)) / float64(bytes)
		if slots > 0 && left < least {
			best, least = run, left
		}
		if least <= 1.0/64 {
			break
		}
	}
	return best
}

// runBytes is the length of a run of slabs for a slot size.
func (l *Layout) runBytes(slotBytes uint32) uint64 { return uint64(l.runOf(slotBytes)) * l.SlabBytes }

// MinSlotBytes is the smallest slot: 4 KiB up to a store of 128 GiB, and larger
// in a larger one, where slots would have too high numbers.
func (l *Layout) MinSlotBytes() uint32 { return uint32(l.SlabBytes / uint64(l.SlotsPerSlab)) }

// slotBytesFor rounds a shard's length up to its size class.
func (l *Layout) slotBytesFor(shardBytes int) uint32 {
	return max(uint32((shardBytes+slotAlign-1)/slotAlign*slotAlign), l.MinSlotBytes())
}

// slots is the number of entries of the slot table.
func (l *Layout) slots() uint32 { return l.Slabs * l.SlotsPerSlab }

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
	l.tagsAt = next(maxTags * tagBytes)
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
	hdrRecReady = 84
	// 96 to 111: the clock, see clock.go.
	hdrRemovals = 112
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
		l.Records > 0 && l.Records <= maxNumber && bits.OnesCount32(l.SlotsPerSlab) == 1 && uint64(l.SlotsPerSlab) <= l.SlabBytes/leastSlotBytes &&
		l.Slabs > 0 && uint64(l.Slabs)*uint64(l.SlotsPerSlab) <= maxNumber
	if !sane {
		return Layout{}, fmt.Errorf("%w: geometry out of range", ErrForeignSegment)
	}
	l.place()
	if l.FileBytes != le.Uint64(mem[hdrBytes:]) || l.FileBytes != fileBytes {
		return Layout{}, fmt.Errorf("%w: %d bytes, the header asks for %d", ErrForeignSegment, fileBytes, l.FileBytes)
	}
	return l, nil
}

// slabClass reads the slot size of a slab, 0 for a slab that is free.
func (s *segment) slabClass(slab uint32) uint32 {
	return le.Uint32(s.mem[s.slabsAt+uint64(slab)*slabEntryBytes:])
}

func (s *segment) setSlabClass(slab, slotBytes uint32) {
	le.PutUint32(s.mem[s.slabsAt+uint64(slab)*slabEntryBytes:], slotBytes)
}

// slabNode reads which NUMA node a slab is bound to. False: to none.
func (s *segment) slabNode(slab uint32) (int, bool) {
	n := le.Uint32(s.mem[s.slabsAt+uint64(slab)*slabEntryBytes+slabNodeAt:])
	return int(n) - 1, n > 0 && n <= maxNodes
}

func (s *segment) setSlabNode(slab uint32, node int) {
	le.PutUint32(s.mem[s.slabsAt+uint64(slab)*slabEntryBytes+slabNodeAt:], uint32(node)+1)
}

// slotOffset returns a slot's offset in the data area.
func (s *segment) slotOffset(slot, slotBytes uint32) uint64 {
	return uint64(slot/s.SlotsPerSlab)*s.SlabBytes + uint64(slot%s.SlotsPerSlab)*uint64(slotBytes)
}
