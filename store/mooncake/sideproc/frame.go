package sideproc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Kinds of frames; agent.py has the same.
const (
	kindExist       byte = 1
	kindPut         byte = 2
	kindGet         byte = 3
	kindRemove      byte = 4
	kindRemoveRegex byte = 5
	kindPing        byte = 6

	kindAnswers byte = 0
	kindRefused byte = 1
	kindFailed  byte = 2
	kindHello   byte = 10
	kindSetup   byte = 11
	kindReady   byte = 12
)

// protocolVersion is of the frames. The agent is a part of this binary: another
// version is another program.
const protocolVersion = 1

const (
	headBytes = 9 // length, call, kind
	// maxFrame bounds a frame, in both directions: MaxKeys keys of MaxKeyBytes fit.
	maxFrame = 8 << 20
	// maxText bounds a text in an answer.
	maxText = 4096
)

const _ = uint(maxFrame - mooncake.MaxKeys*(mooncake.MaxKeyBytes+1) - 4096)

// errFrame: the process said what it should not.
var errFrame = errors.New("malformed frame from the side process")

// frame is a frame without its length.
type frame struct {
	call uint32
	kind byte
	body []byte
}

// readFrame reads the next frame. No more is allocated than has arrived, about.
func readFrame(r io.Reader) (frame, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size < headBytes-4 || size > maxFrame {
		return frame{}, fmt.Errorf("%w: %d bytes", errFrame, size)
	}
	f := frame{call: binary.LittleEndian.Uint32(head[4:]), kind: head[8]}
	f.body = make([]byte, 0, min(size-(headBytes-4), 64<<10))
	for left := int(size) - (headBytes - 4); left > 0; {
		step := min(left, 1<<20)
		at := len(f.body)
		f.body = append(f.body, make([]byte, step)...)
		if _, err := io.ReadFull(r, f.body[at:]); err != nil {
			return frame{}, noEOF(err)
		}
		left -= step
	}
	return f, nil
}

// noEOF makes an end in the midst of a frame an error of its own.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// beginFrame appends a frame's head; endFrame fills in its length, and numberFrame
// another call's number.
func beginFrame(dst []byte, call uint32, kind byte) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, call)
	return append(dst, kind)
}

func endFrame(buf []byte) []byte {
	binary.LittleEndian.PutUint32(buf, uint32(len(buf)-4))
	return buf
}

func numberFrame(buf []byte, call uint32) []byte {
	binary.LittleEndian.PutUint32(buf[4:], call)
	return buf
}

// appendKeys appends keys.
//
// REQUIRES: mooncake.CheckKeys.
func appendKeys(dst []byte, keys []string) []byte {
	total := 8 + len(keys)
	for _, key := range keys {
		total += len(key)
	}
	dst = slices.Grow(dst, total)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(keys)))
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, 0)
		}
		dst = append(dst, key...)
	}
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// appendObjects appends keys and their ranges.
//
// REQUIRES: mooncake.CheckObjects.
func appendObjects(dst []byte, objects []mooncake.Object) []byte {
	keys := make([]string, len(objects))
	for i := range objects {
		keys[i] = objects[i].Key
	}
	dst = slices.Grow(appendKeys(dst, keys), 16*len(objects)+64)
	for i := range objects {
		dst = binary.LittleEndian.AppendUint64(dst, objects[i].Range.Offset)
	}
	for i := range objects {
		dst = binary.LittleEndian.AppendUint64(dst, objects[i].Range.Bytes)
	}
	return dst
}

// Bits of a put's pins.
const (
	pinSoft byte = 1
	pinHard byte = 2
)

// appendHow appends how a put's objects are kept.
func appendHow(dst []byte, how *mooncake.Replication) []byte {
	var pins byte
	if how.SoftPin {
		pins |= pinSoft
	}
	if how.HardPin {
		pins |= pinHard
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(how.Replicas))
	dst = append(dst, pins)
	return append(dst, strings.Join(how.PreferredSegments, "\x00")...)
}

// answersOf reads an answer with n numbers. A refusal is our mistake, and a
// failure one of Mooncake's that has no code.
func answersOf(f frame, n int) ([]mooncake.Answer, error) {
	switch f.kind {
	case kindAnswers:
	case kindRefused:
		return nil, fmt.Errorf("refused by the side process: %s", textOf(f.body))
	case kindFailed:
		return nil, &mooncake.Error{Op: "call", Code: mooncake.CodeInternal, Text: textOf(f.body)}
	default:
		return nil, fmt.Errorf("%w: kind %d", errFrame, f.kind)
	}
	if len(f.body) != 8*n {
		return nil, fmt.Errorf("%w: %d bytes of answers for %d keys", errFrame, len(f.body), n)
	}
	answers := make([]mooncake.Answer, n)
	for i := range answers {
		answers[i] = mooncake.Answer(binary.LittleEndian.Uint64(f.body[8*i:]))
	}
	return answers, nil
}

// textOf is a text from outside, fit for a log.
func textOf(body []byte) string {
	return strings.ToValidUTF8(string(body[:min(len(body), maxText)]), "\ufffd")
}
