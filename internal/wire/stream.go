package wire

import (
	"encoding/binary"
	"fmt"
)

// MaxStreamFrames bounds the frames of one message on a lookup channel: a
// release names the requests that ended in one step.
const MaxStreamFrames = 1 << 12

const lengthBytes = 4

// AppendMessage appends a message for a byte stream, where nothing else tells
// frames apart: a u32 with the bytes that follow, then each frame behind a u32
// with its own.
//
// REQUIRES: the frames have less than 1<<32 bytes together.
func AppendMessage(dst []byte, frames [][]byte) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for _, frame := range frames {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(frame)))
		dst = append(dst, frame...)
	}
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-lengthBytes))
	return dst
}

// SplitMessage appends the frames of a message, whose own length was taken off,
// to dst. They are views of body.
func SplitMessage(dst [][]byte, body []byte) ([][]byte, error) {
	for n := 0; len(body) > 0; n++ {
		if n == MaxStreamFrames {
			return nil, fmt.Errorf("wire: %w: more than %d frames", ErrMalformed, MaxStreamFrames)
		}
		if len(body) < lengthBytes {
			return nil, fmt.Errorf("wire: %w: %d bytes for a frame's length", ErrMalformed, len(body))
		}
		length := binary.BigEndian.Uint32(body)
		body = body[lengthBytes:]
		if uint64(length) > uint64(len(body)) {
			return nil, fmt.Errorf("wire: %w: a frame of %d bytes where %d are left", ErrMalformed, length, len(body))
		}
		dst = append(dst, body[:length:length])
		body = body[length:]
	}
	return dst, nil
}
