package embedded

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store"
	"pgregory.net/rapid"
)

// TestAnotherFormatIsNotAdopted: what an older or newer version wrote is refused
// by name, however well it is kept, so that the store starts empty.
func TestAnotherFormatIsNotAdopted(t *testing.T) {
	for _, version := range []uint32{FormatVersion - 1, FormatVersion + 1} {
		w := newWorld(t, 4<<20)
		s := w.open(1, 1, 100, Declaration{})
		w.store(s, w.namespace(testSpec("m", 8192, 1)), 1, 0)
		le.PutUint32(w.mem[hdrVersion:], version)
		le.PutUint32(w.mem[hdrCRC:], crc32.Checksum(w.mem[:hdrCRC], castagnoli))
		_, _, err := Adopt(w.mem, w.options())
		if !errors.Is(err, ErrForeignSegment) || !strings.Contains(err.Error(), "format") {
			t.Errorf("a segment of format %d: %v", version, err)
		}
	}
}

// TestLayoutOfAnySize: slots and records of every store can be numbered, and its
// header is read back.
func TestLayoutOfAnySize(t *testing.T) {
	for bytes := uint64(minSlabBytes); bytes <= 16<<40; bytes = bytes*3/2 + 1 {
		l, err := NewLayout([16]byte{1}, bytes)
		if err != nil {
			t.Fatalf("%d bytes: %v", bytes, err)
		}
		page := make([]byte, headerBytes)
		l.writeHeader(page)
		got, err := ReadLayout(page, l.FileBytes)
		if err != nil || got != l {
			t.Fatalf("%d bytes: read %+v, %v, want %+v", bytes, got, err, l)
		}
		if l.slots() > maxNumber || l.Records > maxNumber || l.DataOffset%minSlabBytes != 0 {
			t.Fatalf("%d bytes: %+v", bytes, l)
		}
		if data := uint64(l.Slabs) * l.SlabBytes; data > bytes || bytes-data >= l.SlabBytes {
			t.Fatalf("%d bytes of %d are of use", data, bytes)
		}
		if bytes <= 100<<30 && l.MinSlotBytes() != leastSlotBytes {
			t.Errorf("slots of a store of %d bytes have at least %d", bytes, l.MinSlotBytes())
		}
	}
}

// TestRecordIsReadBack: what is written is read, whole, and a changed byte makes
// the record void.
func TestRecordIsReadBack(t *testing.T) {
	w := newWorld(t, 2<<20)
	seg := w.m.seg
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Uint32Range(0, 7).Draw(t, "id")
		slots := rapid.SliceOfNDistinct(rapid.Uint32Range(0, seg.slots()-1), 1, 64, rapid.ID[uint32]).Draw(t, "slots")
		want := record{
			hash: testHash(int(rapid.Uint16().Draw(t, "hash"))), parent: rapid.Uint64().Draw(t, "parent"),
			namespace: rapid.Uint16Range(0, maxNamespaces-1).Draw(t, "namespace"), generation: rapid.Uint16Range(0, generations-1).Draw(t, "generation"), group: rapid.Uint16().Draw(t, "group"),
			depth: rapid.Uint32Range(0, maxDepth).Draw(t, "depth"), state: uint8(rapid.IntRange(recPartial, recActive).Draw(t, "state")),
			slot: slots[0], saltTag: rapid.Uint16().Draw(t, "tag"), flags: recordFlags(rapid.Uint16().Draw(t, "flags")),
			expires: rapid.Uint32().Draw(t, "expires"),
		}
		for i, slot := range slots {
			e := slotEntry{checksum: rapid.Uint32().Draw(t, "sum"), next: noSlot, record: id, shard: uint8(i)}
			if i+1 < len(slots) {
				e.next, e.record = slots[i+1], noRecord
			}
			seg.writeSlot(slot, &e)
			if got, ok := seg.readSlot(slot); !ok || got != e {
				t.Fatalf("slot %d: %+v, %v, want %+v", slot, got, ok, e)
			}
		}
		seg.writeRecord(id, &want)
		if got, ok := seg.readRecord(id); !ok || got != want {
			t.Fatalf("read %+v, %v, want %+v", got, ok, want)
		}
		for _, slot := range slots {
			if owner, ok := seg.ownerOf(slot); !ok || owner != id {
				t.Fatalf("slot %d is record %d's (%v), want %d", slot, owner, ok, id)
			}
		}
		seg.setRecordLife(id, want.saltTag+1, want.flags^flagHardPin, want.expires+1)
		want.saltTag, want.flags, want.expires = want.saltTag+1, want.flags^flagHardPin, want.expires+1
		if got, ok := seg.readRecord(id); !ok || got != want {
			t.Fatalf("after a change: %+v, %v, want %+v", got, ok, want)
		}

		at := seg.recordsAt + uint64(id)*recordBytes + rapid.Uint64Range(0, recordBytes-1).Draw(t, "byte")
		if rapid.Bool().Draw(t, "in a slot") {
			at = seg.slotsAt + uint64(slots[rapid.IntRange(0, len(slots)-1).Draw(t, "which")])*slotEntryBytes + at%slotEntryBytes
		}
		flip := byte(1) << rapid.IntRange(0, 7).Draw(t, "bit")
		w.mem[at] ^= flip
		if got, ok := seg.readRecord(id); ok {
			t.Fatalf("a changed byte at %d was not noticed: %+v", at, got)
		}
		w.mem[at] ^= flip
		if _, ok := seg.readRecord(id); !ok {
			t.Fatal("the byte was put back and the record is void")
		}
		seg.clearRecord(id)
		for _, slot := range slots {
			seg.clearSlot(slot)
			if _, ok := seg.readSlot(slot); ok {
				t.Fatal("a cleared slot is in use")
			}
		}
	})
}

func TestTags(t *testing.T) {
	seg := newWorld(t, 2<<20).m.seg
	long := strings.Repeat("t", maxTagText)
	for i, tag := range map[uint16]string{1: "a", 2: long, maxTags - 1: "tenant \x00 of bytes"} {
		if err := seg.writeTag(i, tag); err != nil {
			t.Fatal(err)
		}
		seg.setTagQuota(i, 1<<40)
		if got := seg.readTag(i); got != tag || seg.tagQuota(i) != 1<<40 {
			t.Errorf("line %d: %q, quota %d", i, got, seg.tagQuota(i))
		}
	}
	for _, tag := range []string{"", long + "t"} {
		if err := seg.writeTag(3, tag); err == nil {
			t.Errorf("a tag of %d bytes was taken", len(tag))
		}
	}
	line := seg.tagLine(2)
	for range 200 {
		at := rand.IntN(len(line))
		if at >= tagQuotaAt && at < tagTextAt {
			continue // a quota is not summed
		}
		line[at] ^= 4
		if got := seg.readTag(2); got != "" {
			t.Fatalf("byte %d changed, read %q", at, got)
		}
		line[at] ^= 4
	}
	seg.clearTag(2)
	if seg.readTag(2) != "" || seg.readTag(0) != "" || seg.readTag(maxTags) != "" {
		t.Error("a free line has a tag")
	}
}

// TestTablesGrowWithWhatTheyHold: memory for records and for slots' entries is
// allocated with the chunks, and when there is none, puts are refused and what is
// stored stays.
func TestTablesGrowWithWhatTheyHold(t *testing.T) {
	w := newWorld(t, 64<<20)
	memory := &meteredMemory{heapMemory: w.mem}
	w.m.mem = memory
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 64<<10, 1))
	if got := w.store(s, ns, 0, 0); got != store.PutGranted {
		t.Fatal(got)
	}
	slots := w.m.seg.SlabBytes / (64 << 10)
	records := min(uint64(recordStep), uint64(w.m.seg.Records)) * recordBytes
	if want := slots*slotEntryBytes + records; memory.prepared != want {
		t.Errorf("%d bytes of tables for a first chunk, want %d", memory.prepared, want)
	}
	memory.full = true
	granted := 0
	for i := 1; i < 2000; i++ {
		if w.store(s, ns, i, 0) == store.PutGranted {
			granted++
		}
	}
	if granted == 0 || !w.exists(ns, 0) && granted < int(slots) {
		t.Errorf("%d puts were granted in the one slab that has a table", granted)
	}
	late := w.namespace(testSpec("late", 128<<10, 1))
	if got := w.store(s, late, 1, 0); got != store.PutNoSpace {
		t.Errorf("a put for which there is no table: %v", got)
	}
	if w.m.Stats().Chunks == 0 {
		t.Error("chunks were evicted in vain")
	}
	w.m.validate(t)
	memory.full = false
	if got := w.store(s, late, 1, 0); got != store.PutGranted {
		t.Errorf("a put when there is memory again: %v", got)
	}
	w.crash()
	w.m.validate(t)
	if !w.exists(late, 1) {
		t.Error("lost in a crash")
	}
}

// meteredMemory counts what is prepared, and may have no more.
type meteredMemory struct {
	heapMemory
	prepared uint64
	full     bool
}

func (m *meteredMemory) Prepare(_, n uint64) error {
	if m.full {
		return errors.New("no memory")
	}
	m.prepared += n
	return nil
}
