package unary

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

const (
	prefixBytes = 4
	// keptBytes bounds the buffer that a connection keeps from call to call.
	keptBytes = 1 << 20
	// maxErrorBytes bounds the text of an error.
	maxErrorBytes = 4 << 10
)

var (
	errTooLong   = errors.New("message too long")
	errMalformed = errors.New("malformed frame")
)

var le = binary.LittleEndian

// readFrame reads what follows a length prefix into buf, which grows as bytes
// arrive, so that a prefix alone claims no memory.
func readFrame(r io.Reader, buf []byte, limit int) ([]byte, error) {
	var prefix [prefixBytes]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return buf[:0], err
	}
	n := int(le.Uint32(prefix[:]))
	if n > limit {
		return buf[:0], fmt.Errorf("%w: %d bytes, the limit is %d", errTooLong, n, limit)
	}
	buf = buf[:0]
	for len(buf) < n {
		step := min(n-len(buf), max(keptBytes, len(buf)))
		from := len(buf)
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(r, buf[from:]); err != nil {
			return buf[:0], noEOF(err)
		}
	}
	return buf, nil
}

// noEOF turns an end in the middle of a frame into an error of its own.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendRequest appends a call's frame.
func appendRequest(buf []byte, method string, args proto.Message) ([]byte, error) {
	if len(method) == 0 || len(method) > 255 {
		return buf, fmt.Errorf("method name of %d bytes", len(method))
	}
	at := len(buf)
	buf = append(buf, 0, 0, 0, 0, byte(len(method)))
	buf = append(buf, method...)
	buf, err := proto.MarshalOptions{}.MarshalAppend(buf, args)
	if err != nil {
		return buf, err
	}
	le.PutUint32(buf[at:], uint32(len(buf)-at-prefixBytes))
	return buf, nil
}

// splitRequest parts a request's body. The results point into it.
func splitRequest(body []byte) (method, args []byte, err error) {
	if len(body) < 1 || len(body) < 1+int(body[0]) || body[0] == 0 {
		return nil, nil, fmt.Errorf("%w: a request of %d bytes", errMalformed, len(body))
	}
	n := int(body[0])
	return body[1 : 1+n], body[1+n:], nil
}

// appendReply appends the frame of a message.
func appendReply(buf []byte, reply proto.Message) ([]byte, error) {
	at := len(buf)
	buf, err := proto.MarshalOptions{}.MarshalAppend(append(buf, 0, 0, 0, 0, byte(codes.OK)), reply)
	if err != nil {
		return buf, err
	}
	le.PutUint32(buf[at:], uint32(len(buf)-at-prefixBytes))
	return buf, nil
}

// appendError appends the frame of an error.
func appendError(buf []byte, code codes.Code, text string) []byte {
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
		for len(text) > 0 && !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}
	}
	buf = le.AppendUint32(buf, uint32(1+len(text)))
	return append(append(buf, byte(code)), text...)
}

// splitReply parts a reply's body. The rest points into it.
func splitReply(body []byte) (codes.Code, []byte, error) {
	if len(body) < 1 || codes.Code(body[0]) > codes.Unauthenticated {
		return 0, nil, fmt.Errorf("%w: a reply of %d bytes", errMalformed, len(body))
	}
	return codes.Code(body[0]), body[1:], nil
}

// kept returns a buffer for the next call: a large one is not held on to.
func kept(buf []byte) []byte {
	if cap(buf) > keptBytes {
		return nil
	}
	return buf[:0]
}
