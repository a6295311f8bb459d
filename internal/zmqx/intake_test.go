package zmqx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// script is a connection that brings some bytes, a few at a time, and keeps what is written.
type script struct {
	net.Conn // none: what is not below is not called

	in  io.Reader
	out bytes.Buffer
	few int // bytes at once, 0 for any number
}

func (s *script) Read(p []byte) (int, error) {
	if s.few > 0 {
		p = p[:min(len(p), s.few)]
	}
	return s.in.Read(p)
}

func (s *script) Write(p []byte) (int, error)      { return s.out.Write(p) }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// wire is what a publisher sends after its greeting.
type wire struct{ bytes.Buffer }

func (w *wire) frame(flags byte, body string) *wire {
	if len(body) < 1<<8 {
		w.Write([]byte{flags, byte(len(body))})
	} else {
		w.Write(binary.BigEndian.AppendUint64([]byte{flags | frameLong}, uint64(len(body))))
	}
	w.WriteString(body)
	return w
}

func (w *wire) message(frames ...string) *wire {
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = frameMore
		}
		w.frame(flags, f)
	}
	return w
}

func greetingOf(mechanism string) string {
	return "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01" + mechanism + strings.Repeat("\x00", 20-len(mechanism)) + strings.Repeat("\x00", 32)
}

const publisherReady = "\x05READY\x08Identity\x00\x00\x00\x00\x0bSocket-Type\x00\x00\x00\x04XPUB"

// Messages come as they were sent, however the bytes come: with more room for large ones,
// without those that have too many frames, and with pings answered in between.
func TestIntake(t *testing.T) {
	large := strings.Repeat("0123456789", 30<<10)
	for _, few := range []int{1, 7, 4 << 10, 0} {
		var w wire
		w.WriteString(greetingOf("NULL"))
		w.frame(frameCommand, publisherReady)
		w.message("kv", "12345678", "first")
		w.frame(frameCommand, "\x04PING\x00\x10context")
		w.message("kv", large, "").message(strings.Split(strings.Repeat("x", 3*MaxFrames), "")...)
		w.frame(frameCommand, "\x09SOMETHING")
		for range 2000 {
			w.message("", large[:100])
		}
		w.message(strings.Split(strings.Repeat("y", MaxFrames), "")...)
		s := &script{in: &w, few: few}
		in := intake{conn: s}
		if err := in.subscribe("topic"); err != nil {
			t.Fatal(err)
		}
		if out := s.out.String(); !strings.HasPrefix(out, "\xff") || !strings.Contains(out, "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB") || !strings.HasSuffix(out, "\x00\x06\x01topic") {
			t.Errorf("%q was said", out)
		}
		s.out.Reset()
		var got [][]string
		for {
			frames, err := in.message()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			texts := make([]string, len(frames))
			for i, f := range frames {
				texts[i] = string(f)
			}
			got = append(got, texts)
		}
		if len(got) != 2003 || got[0][2] != "first" || len(got[1]) != 3 || got[1][1] != large || len(got[2002]) != MaxFrames {
			t.Fatalf("%d at once: %d messages, %.100q", few, len(got), got[0])
		}
		for _, m := range got[2:2002] {
			if len(m) != 2 || m[0] != "" || m[1] != large[:100] {
				t.Fatalf("%q", m)
			}
		}
		if s.out.String() != "\x04\x0c\x04PONGcontext" {
			t.Errorf("a ping is answered by %q", &s.out)
		}
		if len(in.data) > usualIntake {
			t.Errorf("%d bytes are kept", len(in.data))
		}
	}
}

// Whoever is no publisher is heard no further, and memory is not taken for what is only
// promised.
func TestIntakeOfOthers(t *testing.T) {
	greeted := greetingOf("NULL")
	ready := func(after string) string {
		var w wire
		return greeted + w.frame(frameCommand, publisherReady).String() + after
	}
	var subscriber, wrong wire
	subscriber.frame(frameCommand, strings.Replace(publisherReady, "\x04XPUB", "\x03SUB", 1))
	wrong.frame(frameCommand, "\x05READY\xff")
	for name, said := range map[string]string{
		"a web server": strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 9), "another mechanism": greetingOf("PLAIN"),
		"an old version": strings.Replace(greeted, "\x7f\x03", "\x7f\x01", 1), "a subscriber": greeted + subscriber.String(),
		"malformed fields": greeted + wrong.String(), "no command": greeted + "\x00\x00",
		"unknown flags": ready("\x08\x00"), "a frame that is too long": ready("\x02\x00\x00\x00\x00\x10\x00\x00\x00"),
		"a command inside a message": ready("\x01\x01a\x04\x00"), "an error": ready("\x04\x06\x05ERROR"),
		"a promise": ready("\x02\x00\x00\x00\x00\x03\x00\x00\x00abc"),
	} {
		in := intake{conn: &script{in: strings.NewReader(said)}}
		err := in.subscribe("")
		if err == nil {
			_, err = in.message()
		}
		if err == nil || len(in.data) > usualIntake {
			t.Errorf("%s: %v, %d bytes", name, err, len(in.data))
		}
		if promise := name == "a promise"; errors.Is(err, errProtocol) == promise {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzIntake(f *testing.F) {
	var w wire
	w.frame(frameCommand, publisherReady).message("kv", "12345678", strings.Repeat("x", 300)).frame(frameCommand, "\x04PING\x00\x00")
	f.Add(w.Bytes(), uint8(3))
	f.Add([]byte("\x02\x00\x00\x00\x00\x03\x00\x00\x00abc"), uint8(0))
	f.Fuzz(func(t *testing.T, said []byte, few uint8) {
		in := intake{conn: &script{in: io.MultiReader(strings.NewReader(greetingOf("NULL")), bytes.NewReader(said)), few: int(few)}}
		if in.subscribe("") != nil {
			return
		}
		for {
			frames, err := in.message()
			if err != nil {
				return
			}
			total := 0
			for _, frame := range frames {
				total += len(frame)
			}
			if len(frames) == 0 || len(frames) > MaxFrames || total > len(said) {
				t.Fatalf("%d frames of %d bytes", len(frames), total)
			}
		}
	})
}
