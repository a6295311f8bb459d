package disk

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

func TestEntryBytes(t *testing.T) {
	if n := reflect.TypeFor[entry]().Size(); n != entryBytes {
		t.Errorf("an entry has %d bytes, %d are accounted for", n, entryBytes)
	}
}

func fullRecord() recordHeader {
	h := recordHeader{
		Chunk: Chunk{
			Key:    Key{Namespace: [32]byte{1, 31: 2}, Group: 63, Hash: kv.Hash{3, 31: 4}},
			Parent: 1 << 63, Depth: 1 << 23, Expires: 1 << 31, Tag: string(bytes.Repeat([]byte("t"), MaxTagBytes)), ShardBytes: 1 << 20,
		},
		sequence: 1 << 40, birth: 1 << 20,
	}
	for i := range uint32(kv.MaxShards) {
		h.Checksums = append(h.Checksums, i*0x01010101)
	}
	return h
}

func TestRecordIsReadBack(t *testing.T) {
	want := fullRecord()
	b := bytes.Repeat([]byte{0xff}, PageBytes)
	want.encode(b)
	got, err := decodeRecord(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for i := range recCRC {
		b[i] ^= 1
		if _, err := decodeRecord(b); err == nil {
			t.Fatalf("byte %d does not count", i)
		}
		b[i] ^= 1
	}
}

// FuzzPages: no bytes of the disk make a decoder panic, and what a decoder
// accepts is within the limits and is encoded to the same.
func FuzzPages(f *testing.F) {
	page := make([]byte, PageBytes)
	h := fullRecord()
	h.encode(page)
	f.Add(bytes.Clone(page[:headerBytes]))
	(&superblock{regionBytes: 8 << 20, identity: 5}).encode(page)
	f.Add(bytes.Clone(page[:64]))
	(&regionHeader{identity: 5, sequence: 9}).encode(page)
	f.Add(bytes.Clone(page[:64]))
	removed := newRemovals(5)
	removed.addWide(tagMark("t"))
	removed.add(chunkMark([2]uint64{1, 2}))
	removed.voidRegion(7)
	note := removed.note(true)
	f.Add(note.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		again := make([]byte, PageBytes)
		if h, err := decodeRecord(b); err == nil {
			if len(h.Checksums) == 0 || len(h.Checksums) > kv.MaxShards || len(h.Tag) > MaxTagBytes || h.pages() == 0 {
				t.Errorf("accepted %+v", h)
			}
			h.encode(again)
			if second, err := decodeRecord(again); err != nil || !reflect.DeepEqual(h, second) {
				t.Errorf("%+v was read back as %+v, %v", h, second, err)
			}
		}
		if s, err := decodeSuperblock(b); err == nil {
			s.encode(again)
			if second, err := decodeSuperblock(again); err != nil || second != s {
				t.Errorf("%+v was read back as %+v, %v", s, second, err)
			}
			opts := Options{Bytes: 1 << 40, RegionBytes: s.regionBytes}
			opts.setDefaults()
			if err := opts.validate(); err == nil && opts.regions(opts.RegionBytes) > maxRegions {
				t.Errorf("%d regions", opts.regions(opts.RegionBytes))
			}
		}
		if r, err := decodeRegionHeader(b); err == nil {
			r.encode(again)
			if second, err := decodeRegionHeader(again); err != nil || second != r {
				t.Errorf("%+v was read back as %+v, %v", r, second, err)
			}
		}
		if l, err := decodeRemovals(b); err == nil {
			if len(l.lines) > maxRemovalLines || l.floor > l.count {
				t.Errorf("accepted %+v", l)
			}
			note := l.note(true)
			if second, err := decodeRemovals(note.encode()); err != nil || !reflect.DeepEqual(l, second) {
				t.Errorf("%+v was read back as %+v, %v", l, second, err)
			}
		}
	})
}
