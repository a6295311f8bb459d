package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestMessagesOfAStream(t *testing.T) {
	for _, frames := range [][][]byte{
		nil,
		{{}},
		{[]byte(TagPing)},
		{{}, {1}, {}},
		EncodeLookup2(1000, 16, bytes.Repeat([]byte{7}, 16*100), "id", 9),
		EncodeRelease([]string{"a", "", "b"}),
	} {
		message := AppendMessage([]byte("before"), frames)[len("before"):]
		if got := binary.BigEndian.Uint32(message); int(got) != len(message)-4 {
			t.Errorf("%d frames: the length says %d of %d bytes", len(frames), got, len(message)-4)
		}
		got, err := SplitMessage(nil, message[4:])
		if err != nil || !equalFrames(got, frames) {
			t.Errorf("%x came back as %x, %v", frames, got, err)
		}
	}
}

func TestBrokenMessagesOfAStream(t *testing.T) {
	many := AppendMessage(nil, make([][]byte, MaxStreamFrames+1))[4:]
	if _, err := SplitMessage(nil, many[:4*MaxStreamFrames]); err != nil {
		t.Errorf("the most frames that are allowed: %v", err)
	}
	for name, body := range map[string][]byte{
		"half a length":     {0, 0, 0},
		"beyond the end":    {0, 0, 0, 2, 1},
		"far beyond":        {255, 255, 255, 255},
		"after a good one":  {0, 0, 0, 1, 9, 0},
		"too many frames":   many,
		"second beyond end": {0, 0, 0, 0, 0, 0, 0, 1},
	} {
		if _, err := SplitMessage(nil, body); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, ErrMalformed)
		}
	}
}

// FuzzSplitMessage: what splits must be the same bytes when put together again.
func FuzzSplitMessage(f *testing.F) {
	f.Add(AppendMessage(nil, EncodeLookup2(16, 16, make([]byte, 16), "id", 1))[4:])
	f.Add(AppendMessage(nil, EncodeRelease([]string{"a", "b"}))[4:])
	f.Add([]byte{0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, body []byte) {
		frames, err := SplitMessage(nil, body)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		if got := AppendMessage(nil, frames)[4:]; !bytes.Equal(got, body) {
			t.Errorf("%x became %x", body, got)
		}
	})
}
