package embedded

import "github.com/mooncake-sidecar/sidecar/internal/kv"

// noSlot ends a chunk's list of slots.
const noSlot = ^uint32(0)

// slotEntry describes a slot that is in use by a chunk.
type slotEntry struct {
	checksum uint32 // CRC-32C of the shard's bytes
	next     uint32 // next slot of the chunk, noSlot for none
	record   uint32 // of the last slot only, whose chunk it is
	shard    uint8
}

// An entry has 8 bytes: the checksum and the link. The link has the shard's
// number in its upper 6 bits. Below is the number of the next slot plus one, or,
// where linkEnd is set, that of the chunk's record plus one: so that every slot
// tells its record, and no two records can share one. 0: the slot is not in use.
const (
	linkBits   = 25
	linkEnd    = 1 << linkBits
	linkNumber = 1<<linkBits - 1
	linkShard  = linkBits + 1
)

func packLink(e *slotEntry) uint32 {
	number := e.next
	if e.next == noSlot {
		number = e.record
	}
	link := (number+1)&linkNumber | uint32(e.shard)<<linkShard
	if e.next == noSlot {
		link |= linkEnd
	}
	return link
}

// unpackLink reads a link that is in use; of others it says that they end.
func unpackLink(link uint32) slotEntry {
	e := slotEntry{next: noSlot, shard: uint8(link >> linkShard)}
	number := link&linkNumber - 1
	switch {
	case link&linkNumber == 0:
		e.record = noRecord
	case link&linkEnd != 0:
		e.record = number
	default:
		e.next, e.record = number, noRecord
	}
	return e
}

// noRecord is no record's number.
const noRecord = ^uint32(0)

// readSlot reads a slot's entry. False: it is not in use.
func (s *segment) readSlot(slot uint32) (slotEntry, bool) {
	if slot >= s.slots() {
		return slotEntry{}, false
	}
	b := s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes]
	link := le.Uint32(b[4:])
	e := unpackLink(link)
	e.checksum = le.Uint32(b)
	return e, link&linkNumber != 0
}

func (s *segment) writeSlot(slot uint32, e *slotEntry) {
	b := s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes]
	le.PutUint32(b, e.checksum)
	le.PutUint32(b[4:], packLink(e))
}

func (s *segment) clearSlot(slot uint32) {
	clear(s.mem[s.slotsAt+uint64(slot)*slotEntryBytes:][:slotEntryBytes])
}

// ownerOf returns the record of the chunk that has the slot, by going to the end
// of its list. False: the slot is in no chunk's list.
func (s *segment) ownerOf(slot uint32) (uint32, bool) {
	for range kv.MaxShards {
		e, ok := s.readSlot(slot)
		if !ok {
			return 0, false
		}
		if e.next == noSlot {
			return e.record, e.record < s.Records
		}
		slot = e.next
	}
	return 0, false
}
