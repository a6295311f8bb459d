package disk

import (
	"fmt"
	"hash/crc32"
	"io"
)

// reader takes a chunk's shards one after the other, and sums them.
type reader struct {
	shards [][]byte
	sums   []uint32
	shard  int
	at     int // in the shard
}

// left tells whether there is more to read.
func (r *reader) left() bool {
	for r.shard < len(r.shards) && r.at == len(r.shards[r.shard]) {
		r.shard, r.at = r.shard+1, 0
	}
	return r.shard < len(r.shards)
}

// read fills dst as far as there are bytes and returns how many.
func (r *reader) read(dst []byte) (n int) {
	for n < len(dst) && r.left() {
		part := r.shards[r.shard][r.at:]
		part = part[:min(len(part), len(dst)-n)]
		r.sums[r.shard] = copySum(dst[n:], part, r.sums[r.shard])
		n += len(part)
		r.at += len(part)
	}
	return n
}

// scatter distributes a record's payload over the shards' memory, and sums it.
// Without memory it sums only.
type scatter struct {
	shards     [][]byte // nil: sum only
	shardBytes int
	sums       []uint32
	shard, at  int
}

// write takes the next bytes of the payload; what is behind the last shard is
// padding.
func (s *scatter) write(src []byte) {
	for len(src) > 0 && s.shard < len(s.sums) {
		part := src[:min(len(src), s.shardBytes-s.at)]
		if s.shards == nil {
			s.sums[s.shard] = crc32.Update(s.sums[s.shard], castagnoli, part)
		} else {
			s.sums[s.shard] = copySum(s.shards[s.shard][s.at:], part, s.sums[s.shard])
		}
		src = src[len(part):]
		if s.at += len(part); s.at == s.shardBytes {
			s.shard, s.at = s.shard+1, 0
		}
	}
}

// writeAll is WriteAt that calls a short write an error.
func writeAll(f io.WriterAt, p []byte, at int64) error {
	n, err := f.WriteAt(p, at)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write %d bytes at %d: %w", len(p), at, err)
	}
	return nil
}

// readAll is ReadAt that calls a short read an error.
func readAll(f io.ReaderAt, p []byte, at int64) error {
	n, err := f.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(p), at, err)
}
