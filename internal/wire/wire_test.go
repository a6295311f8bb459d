package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// golden is testdata/golden/lookup/lookup.json; see the generator beside it.
type golden struct {
	Requests []struct {
		Kind    string
		Tokens  int
		HashLen int `json:"hash_len"`
		Hashes  string
		Frames  []string
	}
	Replies []struct {
		Hit        int
		Boundaries [][2]int
		Frame      string
	}
	OK     string `json:"resp_ok"`
	Failed string `json:"resp_err"`
}

func readGolden(t testing.TB) golden {
	t.Helper()
	data, err := os.ReadFile("../../testdata/golden/lookup/lookup.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Requests) == 0 || len(g.Replies) == 0 {
		t.Fatal("the golden file is empty")
	}
	return g
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func equalFrames(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func TestInTreeRequests(t *testing.T) {
	for i, c := range readGolden(t).Requests {
		var frames [][]byte
		for _, frame := range c.Frames {
			frames = append(frames, unhex(t, frame))
		}
		r, err := ParseRequest(frames)
		if err != nil {
			t.Errorf("request %d: %v", i, err)
			continue
		}
		if c.Kind == "reset" {
			if r.Kind != KindReset {
				t.Errorf("request %d: kind %d, want a reset", i, r.Kind)
			}
			continue
		}
		hashes := unhex(t, c.Hashes)
		if r.Kind != KindLookup || r.Tokens != c.Tokens || r.Hashes.HashLen() != c.HashLen || r.Hashes.Len()*c.HashLen != len(hashes) {
			t.Errorf("request %d: parsed %+v, want %d tokens and hashes of %d bytes", i, r, c.Tokens, c.HashLen)
		}
		for j := range r.Hashes.Len() {
			if got, want := r.Hashes.At(j), hashes[j*c.HashLen:(j+1)*c.HashLen]; !bytes.Equal(got[:c.HashLen], want) {
				t.Errorf("request %d: hash %d is %x, want %x", i, j, got, want)
			}
		}
		if got := EncodeLookup(c.Tokens, c.HashLen, hashes); !equalFrames(got, frames) {
			t.Errorf("request %d: encoded %x, want %x", i, got, frames)
		}
	}
}

func TestInTreeReplies(t *testing.T) {
	g := readGolden(t)
	for i, c := range g.Replies {
		got := AppendHit(nil, c.Hit)
		for _, b := range c.Boundaries {
			got = AppendBoundary(got, b[0], b[1])
		}
		if want := unhex(t, c.Frame); !bytes.Equal(got, want) {
			t.Errorf("reply %d: encoded %x, want %x", i, got, want)
		}
		hit, boundaries, err := ParseHit(got)
		if err != nil || hit != c.Hit || len(boundaries) != len(c.Boundaries) {
			t.Fatalf("reply %d: parsed %d, %v, %v", i, hit, boundaries, err)
		}
		for j, b := range boundaries {
			if b != (Boundary{c.Boundaries[j][0], c.Boundaries[j][1]}) {
				t.Errorf("reply %d: boundary %d is %v, want %v", i, j, b, c.Boundaries[j])
			}
		}
	}
	if ok, failed := unhex(t, g.OK), unhex(t, g.Failed); !bytes.Equal(ok, []byte{OK}) || !bytes.Equal(failed, []byte{Failed}) {
		t.Errorf("status bytes are %x and %x", ok, failed)
	}
}

func TestLookup2RoundTrip(t *testing.T) {
	hashes := bytes.Repeat([]byte{7}, 48)
	r, err := ParseRequest(EncodeLookup2(1<<32-1, 16, hashes, "cmpl-ä", 1<<63+5))
	if err != nil {
		t.Fatal(err)
	}
	if r.Kind != KindLookup2 || r.Tokens != 1<<32-1 || r.Hashes.Len() != 3 || string(r.ID) != "cmpl-ä" || r.Seq != 1<<63+5 {
		t.Errorf("parsed %+v", r)
	}
	seq, flags, err := ParseStatus(AppendStatus(nil, 1<<63+5, FlagPending))
	if err != nil || seq != 1<<63+5 || flags != FlagPending {
		t.Errorf("status parsed as %d, %d, %v", seq, flags, err)
	}
}

func TestRefused(t *testing.T) {
	fine := EncodeLookup2(16, 16, make([]byte, 16), "id", 1)
	with := func(i int, frame []byte) [][]byte {
		frames := slices.Clone(fine)
		frames[i] = frame
		return frames
	}
	for name, c := range map[string]struct {
		frames [][]byte
		want   error
	}{
		"nothing":           {nil, ErrMalformed},
		"empty tag":         {[][]byte{{}}, ErrUnknownTag},
		"unknown tag":       {[][]byte{[]byte("evict")}, ErrUnknownTag},
		"upper case":        {[][]byte{[]byte("LOOKUP")}, ErrUnknownTag},
		"reset with more":   {[][]byte{[]byte("reset"), {}}, ErrMalformed},
		"ping with more":    {[][]byte{[]byte("ping"), {}}, ErrMalformed},
		"lookup too short":  {[][]byte{[]byte(TagLookup), fine[1], fine[2]}, ErrMalformed},
		"lookup too long":   {with(0, []byte(TagLookup)), ErrMalformed},
		"token count":       {with(1, make([]byte, 5)), ErrMalformed},
		"hash length frame": {with(2, make([]byte, 1)), ErrMalformed},
		"hash length 0":     {with(2, make([]byte, 2)), ErrMalformed},
		"hash length 33":    {with(2, []byte{0, 33}), ErrMalformed},
		"broken blob":       {with(3, make([]byte, 17)), ErrMalformed},
		"long id":           {with(4, bytes.Repeat([]byte("x"), MaxRequestIDBytes+1)), ErrMalformed},
		"id not UTF-8":      {with(4, []byte{0xff}), ErrMalformed},
		"sequence number":   {with(5, make([]byte, 7)), ErrMalformed},
		"long released id":  {EncodeRelease([]string{"a", strings.Repeat("x", MaxRequestIDBytes+1)}), ErrMalformed},
		"released id":       {EncodeRelease([]string{"\xff"}), ErrMalformed},
	} {
		if _, err := ParseRequest(c.frames); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if _, err := ParseRequest([][]byte{bytes.Repeat([]byte("x"), 1<<20)}); len(err.Error()) > 200 {
		t.Errorf("a long tag makes a message of %d bytes", len(err.Error()))
	}
	for _, n := range []int{0, 1, 3, 5, 11, 13} {
		if _, _, err := ParseHit(make([]byte, n)); !errors.Is(err, ErrMalformed) {
			t.Errorf("an answer of %d bytes: %v", n, err)
		}
	}
	if _, _, err := ParseStatus(make([]byte, 8)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a status of 8 bytes: %v", err)
	}
}

// FuzzParseRequest cuts the input into frames at each "\n--\n"; what parses must
// encode to the same frames.
func FuzzParseRequest(f *testing.F) {
	const cut = "\n--\n"
	for _, frames := range [][][]byte{
		EncodeLookup(4096, 32, make([]byte, 64)),
		EncodeLookup(0, 0, nil),
		EncodeLookup2(4096, 16, make([]byte, 64), "id", 9),
		{[]byte(TagReset)},
		{[]byte(TagPing)},
		EncodeRelease([]string{"a", "b"}),
	} {
		f.Add(bytes.Join(frames, []byte(cut)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		frames := bytes.Split(data, []byte(cut))
		r, err := ParseRequest(frames)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownTag) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		var again [][]byte
		switch r.Kind {
		case KindLookup:
			again = EncodeLookup(r.Tokens, r.Hashes.HashLen(), frames[3])
		case KindLookup2:
			again = EncodeLookup2(r.Tokens, r.Hashes.HashLen(), frames[3], string(r.ID), r.Seq)
		case KindRelease:
			var ids []string
			for _, id := range r.Requests {
				ids = append(ids, string(id))
			}
			again = EncodeRelease(ids)
		case KindLookup3, KindSeen:
			return // see FuzzParseChain
		case KindReset, KindReset2, KindPing:
			again = [][]byte{frames[0]}
		default:
			t.Fatalf("kind %d", r.Kind)
		}
		if r.Hashes.Len() == 0 && r.Kind <= KindLookup2 {
			again[2] = frames[2] // without hashes their length means nothing
		}
		if !equalFrames(again, frames) {
			t.Errorf("%q encodes to %q", frames, again)
		}
		for i := range r.Hashes.Len() {
			_ = r.Hashes.At(i)
		}
	})
}

func FuzzParseReply(f *testing.F) {
	f.Add(AppendBoundary(AppendHit(nil, 4096), 1, 4096))
	f.Add([]byte{Failed})
	f.Fuzz(func(t *testing.T, frame []byte) {
		hit, boundaries, err := ParseHit(frame)
		if err != nil {
			return
		}
		again := AppendHit(nil, hit)
		for _, b := range boundaries {
			again = AppendBoundary(again, b.Group, b.Tokens)
		}
		if !bytes.Equal(again, frame) {
			t.Errorf("%x encodes to %x", frame, again)
		}
	})
}

func TestParseDoesNotAllocate(t *testing.T) {
	frames := EncodeLookup2(16_384, 32, make([]byte, 32*1024), strings.Repeat("x", 40), 1)
	if got := testing.AllocsPerRun(100, func() {
		if _, err := ParseRequest(frames); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("parsing a lookup allocates %v times", got)
	}
}
