package embedded

import (
	"fmt"
	"hash/crc32"
)

// A line of the table of salt tags: CRC of the rest but the quota, length, the
// quota, and the text. Records name a tag by the number of its line; line 0 is
// for no tag.
const (
	tagLengthAt = 4
	tagQuotaAt  = 8
	tagTextAt   = 16
	// maxTagText is the longest salt tag that the store can tell from others.
	maxTagText = tagBytes - tagTextAt
)

func (s *segment) tagLine(i uint16) []byte { return s.mem[s.tagsAt+uint64(i)*tagBytes:][:tagBytes] }

func tagCRC(line []byte) uint32 {
	return crc32.Update(crc32.Checksum(line[tagLengthAt:tagQuotaAt], castagnoli), castagnoli, line[tagTextAt:])
}

// readTag returns a salt tag, "" for a line that is free or not whole.
func (s *segment) readTag(i uint16) string {
	if i == 0 || i >= maxTags {
		return ""
	}
	line := s.tagLine(i)
	n := int(le.Uint32(line[tagLengthAt:]))
	if n == 0 || n > maxTagText || tagCRC(line) != le.Uint32(line) {
		return ""
	}
	return string(line[tagTextAt : tagTextAt+n])
}

// writeTag writes a salt tag into a free line, without a quota.
func (s *segment) writeTag(i uint16, tag string) error {
	if i == 0 || i >= maxTags {
		panic("BUG: no line for a salt tag")
	}
	if tag == "" || len(tag) > maxTagText {
		return fmt.Errorf("salt tag of %d bytes, 1 to %d can be kept", len(tag), maxTagText)
	}
	line := s.tagLine(i)
	clear(line)
	copy(line[tagTextAt:], tag)
	le.PutUint32(line[tagLengthAt:], uint32(len(tag)))
	le.PutUint32(line, tagCRC(line))
	return nil
}

// clearTag frees a line. REQUIRES: no record names it.
func (s *segment) clearTag(i uint16) { clear(s.tagLine(i)) }

// tagQuota is the most bytes that chunks of a tag may take, 0 for no bound.
func (s *segment) tagQuota(i uint16) uint64 { return le.Uint64(s.tagLine(i)[tagQuotaAt:]) }

func (s *segment) setTagQuota(i uint16, bytes uint64) {
	le.PutUint64(s.tagLine(i)[tagQuotaAt:], bytes)
}
