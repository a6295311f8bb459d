package hostdev

import "hash/crc32"

const (
	// lineBytes is a cache's. Kernels copy a multiple of it, to a multiple of it: a
	// write past the caches is of a whole line, or costs as much as two.
	lineBytes = 64
	// pieceBytes is copied before its checksum is read: small enough for the first
	// level cache, large enough that the calls do not count.
	pieceBytes = 16 << 10
)

// copyThenSum copies src to dst and returns the CRC-32C of everything so far,
// read from dst.
//
// REQUIRES: len(dst) == len(src).
func copyThenSum(dst, src []byte, sum uint32) uint32 {
	table := castagnoli()
	for len(src) > 0 {
		n := min(len(src), pieceBytes)
		copy(dst[:n], src[:n])
		sum = crc32.Update(sum, table, dst[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}

// castagnoli returns the library's own table, which it knows by address and
// computes with the processor's instruction.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }
