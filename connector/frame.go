package connector

import (
	"encoding/binary"
	"fmt"
	"io"
)

const (
	headerBytes = 4
	// growBytes is how much a reader allocates ahead of the bytes that came, so
	// that a length alone costs a peer nothing.
	growBytes = 256 << 10
	// keepBytes is the largest buffer a reader keeps between frames.
	keepBytes = 1 << 20
)

// FrameReader cuts a stream into frames. It never reads beyond the end of the
// frame it was asked for: descriptors that arrive with a byte must be matched
// to the frame of that byte.
type FrameReader struct {
	r    io.Reader
	max  int
	head [headerBytes]byte
	buf  []byte
}

// NewFrameReader reads frames of at most MaxFrameBytes from r.
func NewFrameReader(r io.Reader) *FrameReader { return NewFrameReaderLimit(r, MaxFrameBytes) }

// NewFrameReaderLimit reads frames of at most maxBytes from r.
func NewFrameReaderLimit(r io.Reader, maxBytes int) *FrameReader {
	return &FrameReader{r: r, max: maxBytes}
}

// Next returns the next frame without its length. The bytes are valid until the
// following call. The error is io.EOF between frames, io.ErrUnexpectedEOF
// inside one, ErrFrameTooLong, or the stream's.
func (f *FrameReader) Next() ([]byte, error) {
	if cap(f.buf) > keepBytes {
		f.buf = nil
	}
	if _, err := io.ReadFull(f.r, f.head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(f.head[:])
	if uint64(n) > uint64(f.max) {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are accepted", ErrFrameTooLong, n, f.max)
	}
	want := int(n)
	f.buf = f.buf[:0]
	for len(f.buf) < want {
		have := len(f.buf)
		f.buf = grow(f.buf, min(want, max(2*have, growBytes)))
		if _, err := io.ReadFull(f.r, f.buf[have:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return f.buf, nil
}

// grow returns buf with length n, its bytes kept.
func grow(buf []byte, n int) []byte {
	if cap(buf) >= n {
		return buf[:n]
	}
	bigger := make([]byte, n)
	copy(bigger, buf)
	return bigger
}
