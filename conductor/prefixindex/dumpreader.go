package prefixindex

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// dumpReader reads what dumpWriter has written, and sums it. After a fault it reads zeros.
type dumpReader struct {
	in  *bufio.Reader
	sum xxh3.Hasher
	buf [8]byte
	err error
}

func (r *dumpReader) fail(why string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrDump, why)
	}
}

// read returns n bytes, at most eight, which are valid until the next call.
func (r *dumpReader) read(n int) []byte {
	into := r.buf[:n]
	r.fill(into)
	return into
}

func (r *dumpReader) fill(into []byte) {
	if r.err == nil {
		if _, err := io.ReadFull(r.in, into); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			r.fail("it ends early")
		} else if err != nil {
			r.err = err
		}
	}
	if r.err != nil {
		clear(into)
		return
	}
	_, _ = r.sum.Write(into) // it can't fail
}

func (r *dumpReader) byte() byte          { return r.read(1)[0] }
func (r *dumpReader) uint32() uint32      { return binary.LittleEndian.Uint32(r.read(4)) }
func (r *dumpReader) uint64() uint64      { return binary.LittleEndian.Uint64(r.read(8)) }
func (r *dumpReader) hash() kvevents.Hash { return kvevents.Hash(r.uint64()) }

func (r *dumpReader) text(most uint32) string {
	n := r.uint32()
	if n > most {
		r.fail("a text is too long")
	}
	if r.err != nil {
		return ""
	}
	text := make([]byte, n)
	r.fill(text)
	return string(text)
}
