package embedded

import (
	"crypto/sha256"
	"fmt"
)

// foldTag makes a salt tag of any length one that the segment can keep: a long
// one is named by its beginning and its digest.
func foldTag(tag string) string {
	if len(tag) <= maxTagText {
		return tag
	}
	const digestText = 2 * 16
	sum := sha256.Sum256([]byte(tag))
	return fmt.Sprintf("%s#%x", tag[:maxTagText-digestText-1], sum[:16])
}

// tagLocked returns the number of a salt tag and gives a new one a line of the
// table, if need be that of a tag of which nothing is left.
func (m *Master) tagLocked(tag string) (uint16, error) {
	if tag == "" {
		return 0, nil
	}
	tag = foldTag(tag)
	if i, known := m.tagNumber[tag]; known {
		return i, nil
	}
	reuse := uint16(0)
	for i := uint16(1); i < maxTags; i++ {
		a := &m.books.tags[i]
		if m.tags[i] == "" {
			reuse = i
			break
		}
		if reuse == 0 && a.bytes == 0 && a.chunks == 0 && a.quota == 0 {
			reuse = i
		}
	}
	if reuse == 0 {
		return 0, fmt.Errorf("%w: %d have chunks or a quota", ErrQuotaTable, maxTags-1)
	}
	delete(m.tagNumber, m.tags[reuse])
	m.seg.clearTag(reuse)
	if err := m.seg.writeTag(reuse, tag); err != nil {
		return 0, err
	}
	m.tags[reuse], m.tagNumber[tag] = tag, reuse
	m.books.tags[reuse] = account{}
	return reuse, nil
}
