package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// What is split, and walked through, is what came, in its order.
func FuzzExtraKeys(f *testing.F) {
	for _, keys := range []string{"\x93\x91\xa1a\xc0\x92\x92\xa3img\xfd\xa4salt", "\x90", "\xc0", "\x91\xd9\x03abc", "\xdd\xff\xff\xff\xff", "\x91\x92\xa1", ""} {
		f.Add([]byte(keys))
	}
	f.Fuzz(func(t *testing.T, keys []byte) {
		entries, ok := SplitExtraKeys(keys, nil)
		if whole := bytes.Join(entries, nil); !bytes.Contains(keys, whole) || ok && len(entries) > len(keys) {
			t.Fatalf("%x has %x", keys, entries)
		}
		for _, entry := range append(entries, keys) {
			var all []byte
			WalkExtraKeys(entry, func(value, text []byte) {
				if !bytes.HasSuffix(value, text) {
					t.Fatalf("%x says %q", value, text)
				}
				all = append(all, value...)
			})
			if !bytes.Contains(entry, all) {
				t.Fatalf("%x has %x", entry, all)
			}
		}
	})
}

// Frames of any number and length are a message or malformed.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("topic"), []byte("\x00\x00\x00\x00\x00\x00\x00\x07"), []byte("batch"), []byte{}, 4)
	f.Add([]byte{}, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), []byte{}, []byte{}, 3)
	f.Fuzz(func(t *testing.T, a, b, c, d []byte, n int) {
		frames := [][]byte{a, b, c, d}
		frames = frames[:min(max(n, 0), len(frames))]
		for name, parse := range map[string]func([][]byte) (Message, error){"live": ParseLive, "replay": ParseReplay} {
			m, err := parse(frames)
			if err != nil {
				if !errors.Is(err, ErrMalformed) {
					t.Fatal(err)
				}
				continue
			}
			last := len(frames) - 1
			if m.End {
				if name == "live" || len(frames[last]) > 0 {
					t.Fatalf("%x is the end", frames)
				}
			} else if m.Seq != binary.BigEndian.Uint64(frames[last-1]) || !bytes.Equal(m.Payload, frames[last]) {
				t.Fatalf("%x is %+v", frames, m)
			}
		}
	})
}
