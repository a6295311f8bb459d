package connector

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// AppendFrame appends msg, one of this package's messages with its Type set, as
// a frame with its length.
func AppendFrame(dst []byte, msg any) ([]byte, error) {
	start := len(dst)
	buf := bytes.NewBuffer(append(dst, 0, 0, 0, 0))
	enc := msgpack.NewEncoder(buf)
	enc.UseCompactInts(true)
	if err := enc.Encode(msg); err != nil {
		return dst, fmt.Errorf("encode %T: %w", msg, err)
	}
	dst = buf.Bytes()
	n := len(dst) - start - headerBytes
	if n > MaxFrameBytes {
		return dst[:start], fmt.Errorf("encode %T: %w: %d bytes", msg, ErrFrameTooLong, n)
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(n))
	return dst, nil
}
