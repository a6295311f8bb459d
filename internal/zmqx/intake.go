package zmqx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// intake reads what a publisher sends, in version 3.0 of ZeroMQ's protocol without security:
// a greeting of 64 bytes, a command READY, then messages of frames.
type intake struct {
	conn net.Conn
	// data[from:to] has come and was not taken.
	data     []byte
	from, to int
	frames   [][]byte
}

const greetingBytes = 64

// The flags of a frame.
const (
	frameMore    = 1 << iota // another one of the message follows
	frameLong                // its length has eight bytes, not one
	frameCommand             // it is no part of a message
	frameFlags   = frameMore | frameLong | frameCommand
)

// The bytes of a frame before its own.
const (
	shortHead = 2
	longHead  = 9
)

// Memory of an intake: at first, where there is much to read, and beyond what it is given
// back.
const (
	firstIntake = 4 << 10
	usualIntake = 32 << 10
)

// pongTime bounds how long an answer waits for a publisher to read it.
const pongTime = time.Second

// errProtocol: what has come is not what a publisher says.
var errProtocol = errors.New("no publisher's words")

// subscribe greets a publisher, and asks for a topic.
func (in *intake) subscribe(topic string) error {
	const signed, major, mechanism = 10, 3, 12
	greeting := make([]byte, greetingBytes, 2*greetingBytes)
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f")
	greeting[signed] = major
	copy(greeting[mechanism:], "NULL")
	const ready = "\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
	out := append(append(greeting, frameCommand, byte(len(ready))), ready...)
	if _, err := in.conn.Write(out); err != nil {
		return fmt.Errorf("zmqx: greet: %w", err)
	}
	if err := in.need(signed); err != nil {
		return err
	}
	if theirs := in.data[in.from:]; theirs[0] != greeting[0] || theirs[signed-1]&1 == 0 {
		return fmt.Errorf("zmqx: greet: %w", errProtocol)
	}
	if err := in.need(greetingBytes); err != nil {
		return err
	}
	theirs := in.data[in.from : in.from+greetingBytes]
	if theirs[signed] < major || !bytes.HasPrefix(theirs[mechanism:], []byte("NULL\x00")) {
		return fmt.Errorf("zmqx: greet: %w", errProtocol)
	}
	in.from += greetingBytes
	flags, head, size, err := in.frame(0)
	if err != nil {
		return err
	}
	body := in.data[in.from+head : in.from+head+size]
	if flags&frameCommand == 0 || !isPublisher(body) {
		return fmt.Errorf("zmqx: greet: %w", errProtocol)
	}
	in.from += head + size
	out = appendFrameHead(out[:0], 1+len(topic))
	if _, err := in.conn.Write(append(append(out, 1), topic...)); err != nil {
		return fmt.Errorf("zmqx: subscribe: %w", err)
	}
	return nil
}

// appendFrameHead begins the only frame of a message.
func appendFrameHead(dst []byte, length int) []byte {
	if length < 1<<8 {
		return append(dst, 0, byte(length)) //nolint:gosec // checked
	}
	return binary.BigEndian.AppendUint64(append(dst, frameLong), uint64(length)) //nolint:gosec // a length
}

// isPublisher tells whether a command says that a publisher is ready.
func isPublisher(command []byte) bool {
	fields, ok := bytes.CutPrefix(command, []byte("\x05READY"))
	if !ok {
		return false
	}
	for len(fields) > 0 {
		nameEnd := 1 + int(fields[0])
		if len(fields) < nameEnd+4 {
			return false
		}
		size := uint64(binary.BigEndian.Uint32(fields[nameEnd:]))
		value := fields[nameEnd+4:]
		if uint64(len(value)) < size {
			return false
		}
		if bytes.EqualFold(fields[1:nameEnd], []byte("Socket-Type")) {
			return string(value[:size]) == "PUB" || string(value[:size]) == "XPUB"
		}
		fields = value[size:]
	}
	return false
}

// message returns the next message of at most MaxFrames frames, which are its caller's until
// the next call. Those of more are left out.
func (in *intake) message() ([][]byte, error) {
	if in.from == in.to && len(in.data) > usualIntake {
		in.data, in.from, in.to = nil, 0, 0
	}
	at := 0
	var ends [MaxFrames][2]int // where each frame is behind in.from
	for n := 0; ; {
		flags, head, size, err := in.frame(at)
		if err != nil {
			return nil, err
		}
		if flags&frameCommand != 0 {
			if at > 0 || n > 0 {
				return nil, fmt.Errorf("zmqx: %w", errProtocol)
			}
			if err := in.command(in.data[in.from+head : in.from+head+size]); err != nil {
				return nil, err
			}
			in.from += head + size
			continue
		}
		if n < MaxFrames {
			ends[n] = [2]int{at + head, at + head + size}
			at += head + size
		} else { // nobody is to keep the rest
			in.from, at = in.from+at+head+size, 0
		}
		n = min(n+1, MaxFrames+1)
		if flags&frameMore != 0 {
			continue
		}
		if n > MaxFrames {
			in.from, at, n = in.from+at, 0, 0
			continue
		}
		in.frames = in.frames[:0]
		for _, end := range ends[:n] {
			in.frames = append(in.frames, in.data[in.from+end[0]:in.from+end[1]:in.from+end[1]])
		}
		in.from += at
		return in.frames, nil
	}
}

// frame has a frame come whole that begins at some place behind in.from.
func (in *intake) frame(at int) (flags byte, head, size int, err error) {
	if err = in.need(at + shortHead); err != nil {
		return 0, 0, 0, err
	}
	flags, head = in.data[in.from+at], shortHead
	length := uint64(in.data[in.from+at+1])
	if flags&frameLong != 0 {
		head = longHead
		if err = in.need(at + longHead); err != nil {
			return 0, 0, 0, err
		}
		length = binary.BigEndian.Uint64(in.data[in.from+at+1:])
	}
	if flags&^frameFlags != 0 || length > MaxFrameBytes || at+int(length) > MaxFrameBytes+MaxFrames*longHead { //nolint:gosec // checked
		return 0, 0, 0, fmt.Errorf("zmqx: %w", errProtocol)
	}
	size = int(length) //nolint:gosec // checked
	return flags, head, size, in.need(at + head + size)
}

// need waits until so many bytes have come behind in.from. Memory grows as they come, not as
// they are promised.
func (in *intake) need(n int) error {
	for in.to-in.from < n {
		if in.from > 0 && (in.from == in.to || in.from+n > len(in.data)) {
			in.to = copy(in.data, in.data[in.from:in.to])
			in.from = 0
		}
		if in.to == len(in.data) {
			more := make([]byte, max(2*len(in.data), firstIntake))
			copy(more, in.data[:in.to])
			in.data = more
		}
		got, err := in.conn.Read(in.data[in.to:])
		in.to += got
		if err != nil {
			return fmt.Errorf("zmqx: read: %w", err)
		}
		if in.to == len(in.data) && in.to < usualIntake { // there is more to read at once
			more := make([]byte, usualIntake)
			in.to = copy(more, in.data[in.from:in.to])
			in.data, in.from = more, 0
		}
	}
	return nil
}

// command answers a publisher that wants to know whether somebody is there.
func (in *intake) command(body []byte) error {
	const ttl = 2
	echo, ok := bytes.CutPrefix(body, []byte("\x04PING"))
	if !ok {
		if bytes.HasPrefix(body, []byte("\x05ERROR")) {
			return fmt.Errorf("zmqx: %w", errProtocol)
		}
		return nil
	}
	echo = echo[min(ttl, len(echo)):]
	pong := append(make([]byte, 0, 32), frameCommand, 0)
	pong = append(append(pong, "\x04PONG"...), echo[:min(len(echo), 16)]...)
	pong[1] = byte(len(pong) - shortHead)
	if err := in.conn.SetWriteDeadline(time.Now().Add(pongTime)); err != nil {
		return fmt.Errorf("zmqx: answer: %w", err)
	}
	if _, err := in.conn.Write(pong); err != nil {
		return fmt.Errorf("zmqx: answer: %w", err)
	}
	return nil
}
