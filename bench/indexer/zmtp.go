package indexer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// What a PUB socket says of version 3.0 of ZeroMQ's protocol, without security.

// greetingBytes is the length of what both sides begin with.
const greetingBytes = 64

// The flags of a frame.
const (
	frameMore    = 1 << iota // another one of the message follows
	frameLong                // its length has eight bytes
	frameCommand             // it is no message
)

// mostFrame bounds what a subscriber sends.
const mostFrame = 1 << 16

// greet opens a connection as a publisher.
func greet(conn io.ReadWriter) error {
	greeting := make([]byte, greetingBytes)
	const signed, major, mechanism = 10, 3, 12
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f")
	greeting[signed] = major
	copy(greeting[mechanism:], "NULL")
	ready := []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB")
	out := append(greeting, frameCommand, byte(len(ready)))
	if _, err := conn.Write(append(out, ready...)); err != nil {
		return fmt.Errorf("greeting a subscriber: %w", err)
	}
	theirs := make([]byte, greetingBytes)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return fmt.Errorf("greeting a subscriber: %w", err)
	}
	if theirs[0] != greeting[0] || theirs[signed] < major || !bytes.HasPrefix(theirs[mechanism:], []byte("NULL\x00")) {
		return errors.New("greeting a subscriber: another protocol")
	}
	return nil
}

// readFrame reads a frame.
func readFrame(r io.Reader) (flags byte, body []byte, err error) {
	head := make([]byte, 2, 9)
	if _, err = io.ReadFull(r, head); err != nil {
		return 0, nil, fmt.Errorf("reading a frame: %w", err)
	}
	flags = head[0]
	length := uint64(head[1])
	if flags&frameLong != 0 {
		head = head[:9]
		if _, err = io.ReadFull(r, head[2:]); err != nil {
			return 0, nil, fmt.Errorf("reading a frame: %w", err)
		}
		length = binary.BigEndian.Uint64(head[1:])
	}
	if length > mostFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", length) //nolint:err113 // the words of another process
	}
	body = make([]byte, length)
	if _, err = io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("reading a frame: %w", err)
	}
	return flags, body, nil
}

// isSubscription tells whether a frame subscribes: in the form of 3.0, or in that of 3.1.
func isSubscription(flags byte, body []byte) bool {
	if flags&frameCommand != 0 {
		return bytes.HasPrefix(body, []byte("\x09SUBSCRIBE"))
	}
	return len(body) > 0 && body[0] == 1
}

func isPing(flags byte, body []byte) bool {
	return flags&frameCommand != 0 && bytes.HasPrefix(body, []byte("\x04PING"))
}

// pong answers a ping, with the words that are behind its time to live.
func pong(ping []byte) []byte {
	const before = len("\x04PING") + 2
	out := append([]byte{frameCommand, 0}, "\x04PONG"...)
	out = append(out, ping[min(before, len(ping)):min(before+16, len(ping))]...)
	out[1] = byte(len(out) - 2)
	return out
}

// appendHead appends all of a message before its last frame's bytes: an empty topic, a
// number, and how long the last one is.
func appendHead(dst []byte, seq uint64, length int) []byte {
	dst = append(dst, frameMore, 0, frameMore, 8)
	dst = binary.BigEndian.AppendUint64(dst, seq)
	return binary.BigEndian.AppendUint64(append(dst, frameLong), uint64(length)) //nolint:gosec // a length
}
