package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// FormatVersion is the version of the files. Files of another version are not
// read: the tier starts empty and says so.
const FormatVersion = 2

const (
	// PageBytes is the unit of I/O and of places in the file.
	PageBytes = 4096
	// headerBytes is the length of a record's header, in front of the first shard.
	headerBytes = 640
	// MaxTagBytes is the longest salt tag that a record keeps: no shorter than the
	// longest that the store tells from others.
	MaxTagBytes = 240

	superblockAt = 0
	probeAt      = PageBytes
	regionsAt    = 1 << 20

	minRegionBytes = 1 << 20
	maxRegionBytes = 1 << 30
)

var (
	superblockMagic = [8]byte{'M', 'C', 'S', 'D', 'I', 'S', 'K', 0}
	regionMagic     = [8]byte{'M', 'C', 'S', 'D', 'R', 'E', 'G', 0}
	recordMagic     = [8]byte{'M', 'C', 'S', 'D', 'R', 'E', 'C', 0}
	castagnoli      = crc32.MakeTable(crc32.Castagnoli)
	le              = binary.LittleEndian
)

// errFormat: bytes that are none of this format.
var errFormat = errors.New("not a page of this format")

// Key names a chunk, in words that hold in every store.
type Key struct {
	// Namespace is the digest of the namespace's description.
	Namespace [32]byte
	Group     uint16
	Hash      kv.Hash
}

// Chunk is a chunk as the disk knows it.
type Chunk struct {
	Key
	// Parent are the first bytes of the predecessor's hash, 0 for none.
	Parent uint64
	Depth  uint32
	// Expires is in Unix seconds, 0 for never.
	Expires uint32
	// Tag is the salt tag, at most MaxTagBytes.
	Tag string
	// ShardBytes is the length of each shard.
	ShardBytes uint32
	// Checksums are the CRC-32C of the shards' bytes, by shard.
	Checksums []uint32
}

// payloadBytes is the length of all shards together.
func (c *Chunk) payloadBytes() int { return int(c.ShardBytes) * len(c.Checksums) }

// pages is the length of the chunk's record.
func (c *Chunk) pages() uint32 { return pagesOf(int(c.ShardBytes), len(c.Checksums)) }

func pagesOf(shardBytes, shards int) uint32 {
	return uint32((headerBytes + uint64(shardBytes)*uint64(shards) + PageBytes - 1) / PageBytes)
}

// superblock is the file's first page, fixed when the file is made.
type superblock struct {
	regionBytes uint64
	// identity tells files apart; the file of removals repeats it.
	identity uint64
}

func (s *superblock) encode(page []byte) {
	clear(page[:PageBytes])
	copy(page, superblockMagic[:])
	le.PutUint32(page[8:], FormatVersion)
	le.PutUint64(page[16:], s.regionBytes)
	le.PutUint64(page[24:], s.identity)
	le.PutUint32(page[32:], crc32.Checksum(page[:32], castagnoli))
}

func decodeSuperblock(page []byte) (superblock, error) {
	if len(page) < 36 || [8]byte(page[:8]) != superblockMagic {
		return superblock{}, fmt.Errorf("%w: no magic number", errFormat)
	}
	if v := le.Uint32(page[8:]); v != FormatVersion {
		return superblock{}, fmt.Errorf("%w: format %d, this build reads %d", errFormat, v, FormatVersion)
	}
	if crc32.Checksum(page[:32], castagnoli) != le.Uint32(page[32:]) {
		return superblock{}, fmt.Errorf("%w: checksum of the first page", errFormat)
	}
	return superblock{regionBytes: le.Uint64(page[16:]), identity: le.Uint64(page[24:])}, nil
}

// regionHeader is a region's first page. sequence counts the uses of all regions;
// what was written in an earlier use has another one.
type regionHeader struct {
	identity uint64
	sequence uint64
}

func (r *regionHeader) encode(page []byte) {
	clear(page[:PageBytes])
	copy(page, regionMagic[:])
	le.PutUint64(page[8:], r.identity)
	le.PutUint64(page[16:], r.sequence)
	le.PutUint32(page[24:], crc32.Checksum(page[:24], castagnoli))
}

func decodeRegionHeader(page []byte) (regionHeader, error) {
	if len(page) < 28 || [8]byte(page[:8]) != regionMagic || crc32.Checksum(page[:24], castagnoli) != le.Uint32(page[24:]) {
		return regionHeader{}, fmt.Errorf("%w: region", errFormat)
	}
	return regionHeader{identity: le.Uint64(page[8:]), sequence: le.Uint64(page[16:])}, nil
}

// recordHeader is a record's header.
type recordHeader struct {
	Chunk
	sequence uint64 // of the region's use
	birth    uint64 // see removals
}

const (
	recSequence   = 8
	recBirth      = 16
	recGroup      = 26 // u16
	recShards     = 28 // u16
	recTagLen     = 30 // u16
	recShardBytes = 32
	recDepth      = 36
	recExpires    = 40
	recParent     = 48
	recNamespace  = 56
	recHash       = 88
	recTag        = 120
	recSums       = recTag + MaxTagBytes
	recCRC        = recSums + 4*kv.MaxShards
)

// encode writes the header.
//
// REQUIRES: the chunk is one that fits (see Tier.fits).
func (h *recordHeader) encode(b []byte) {
	b = b[:headerBytes]
	clear(b)
	copy(b, recordMagic[:])
	le.PutUint64(b[recSequence:], h.sequence)
	le.PutUint64(b[recBirth:], h.birth)
	le.PutUint16(b[recGroup:], h.Group)
	le.PutUint16(b[recShards:], uint16(len(h.Checksums)))
	le.PutUint16(b[recTagLen:], uint16(len(h.Tag)))
	le.PutUint32(b[recShardBytes:], h.ShardBytes)
	le.PutUint32(b[recDepth:], h.Depth)
	le.PutUint32(b[recExpires:], h.Expires)
	le.PutUint64(b[recParent:], h.Parent)
	copy(b[recNamespace:], h.Namespace[:])
	copy(b[recHash:], h.Hash[:])
	copy(b[recTag:], h.Tag)
	for i, sum := range h.Checksums {
		le.PutUint32(b[recSums+4*i:], sum)
	}
	le.PutUint32(b[recCRC:], crc32.Checksum(b[:recCRC], castagnoli))
}

// decodeRecord reads a record's header.
func decodeRecord(b []byte) (recordHeader, error) {
	if len(b) < headerBytes || [8]byte(b[:8]) != recordMagic || crc32.Checksum(b[:recCRC], castagnoli) != le.Uint32(b[recCRC:]) {
		return recordHeader{}, fmt.Errorf("%w: record", errFormat)
	}
	shards, tag := int(le.Uint16(b[recShards:])), int(le.Uint16(b[recTagLen:]))
	h := recordHeader{
		Chunk: Chunk{
			Key:    Key{Namespace: [32]byte(b[recNamespace:]), Group: le.Uint16(b[recGroup:]), Hash: kv.Hash(b[recHash : recHash+kv.MaxHashBytes])},
			Parent: le.Uint64(b[recParent:]), Depth: le.Uint32(b[recDepth:]), Expires: le.Uint32(b[recExpires:]),
			ShardBytes: le.Uint32(b[recShardBytes:]),
		},
		sequence: le.Uint64(b[recSequence:]), birth: le.Uint64(b[recBirth:]),
	}
	if shards < 1 || shards > kv.MaxShards || tag > MaxTagBytes || h.ShardBytes == 0 || h.birth > math.MaxUint32 {
		return recordHeader{}, fmt.Errorf("%w: a record of %d shards of %d bytes with a tag of %d", errFormat, shards, h.ShardBytes, tag)
	}
	h.Tag = string(b[recTag : recTag+tag])
	h.Checksums = make([]uint32, shards)
	for i := range h.Checksums {
		h.Checksums[i] = le.Uint32(b[recSums+4*i:])
	}
	return h, nil
}
