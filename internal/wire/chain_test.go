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

// chainVector is one of testdata/golden/lookup/chain.json, which both sides read.
type chainVector struct {
	Tokens  int
	HashLen int `json:"hash_len"`
	Hashes  string
	ID      string
	Stride  int
	Turns   []struct {
		Seq    uint64
		Frames []string
		Reply  []string
		Again  bool
	}
	Seen []string
}

func TestChainVectors(t *testing.T) {
	data, err := os.ReadFile("../../testdata/golden/lookup/chain.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []chainVector
	if err := json.Unmarshal(data, &vectors); err != nil || len(vectors) == 0 {
		t.Fatal(err, len(vectors))
	}
	for i, v := range vectors {
		hashes := unhex(t, v.Hashes)
		asking := Asking{Tokens: v.Tokens, Hashes: hashes, HashLen: v.HashLen, ID: v.ID, Stride: v.Stride}
		for j, turn := range v.Turns {
			frames := asking.Frames(turn.Seq)
			if got := hexes(frames); !slices.Equal(got, turn.Frames) {
				t.Errorf("vector %d, turn %d: asked\n%q, want\n%q", i, j, got, turn.Frames)
			}
			r, err := ParseRequest(frames)
			if err != nil || r.Tokens != v.Tokens || string(r.ID) != v.ID || r.Seq != turn.Seq {
				t.Errorf("vector %d, turn %d: parsed %+v, %v", i, j, r, err)
			}
			var reply [][]byte
			for _, frame := range turn.Reply {
				reply = append(reply, unhex(t, frame))
			}
			if again, err := asking.Heard(reply); again != turn.Again || err != nil {
				t.Errorf("vector %d, turn %d: again %v, %v", i, j, again, err)
			}
		}
		if got := hexes(EncodeSeen(v.HashLen, hashes)); !slices.Equal(got, v.Seen) {
			t.Errorf("vector %d: shown %q, want %q", i, got, v.Seen)
		}
	}
}

func hexes(frames [][]byte) (out []string) {
	for _, frame := range frames {
		out = append(out, hex.EncodeToString(frame))
	}
	return out
}

func TestLookup3RoundTrip(t *testing.T) {
	hashes := make([]byte, 8*5)
	for i := range hashes {
		hashes[i] = byte(i)
	}
	runs := []Run{{0, 1, 2}, {9, 10, 2}, {29, 1, 1}}
	r, err := ParseRequest(EncodeLookup3(481, 8, 30, runs, hashes, "cmpl-ä", 1<<63+5))
	if err != nil {
		t.Fatal(err)
	}
	if r.Kind != KindLookup3 || r.Tokens != 481 || r.Chain != 30 || r.Hashes.Len() != 5 || string(r.ID) != "cmpl-ä" || r.Seq != 1<<63+5 || r.Runs.Len() != 3 {
		t.Errorf("parsed %+v", r)
	}
	for i, run := range runs {
		if r.Runs.At(i) != run {
			t.Errorf("run %d is %v, want %v", i, r.Runs.At(i), run)
		}
	}
	if from, end, err := ParseGap(AppendGap(nil, 16, 127)); from != 16 || end != 127 || err != nil {
		t.Errorf("a gap of %d to %d, %v", from, end, err)
	}
	if _, _, err := ParseHit(AppendGap(nil, 16, 127)); err == nil {
		t.Error("a gap was taken for a hit")
	}
}

func TestChainsRefused(t *testing.T) {
	hash := make([]byte, 8)
	of := func(chain int, hashes []byte, runs ...Run) [][]byte {
		return EncodeLookup3(16, 8, chain, runs, hashes, "id", 1)
	}
	fine := of(4, hash, Run{3, 1, 1})
	with := func(i int, frame []byte) [][]byte {
		frames := slices.Clone(fine)
		frames[i] = frame
		return frames
	}
	if _, err := ParseRequest(fine); err != nil {
		t.Fatal(err)
	}
	for name, frames := range map[string][][]byte{
		"no hashes":            of(4, nil),
		"no chain":             of(0, hash, Run{0, 1, 1}),
		"a long chain":         of(MaxChainHashes+1, hash, Run{0, 1, 1}),
		"behind the end":       of(4, hash, Run{4, 1, 1}),
		"no step":              of(4, hash, Run{3, 0, 1}),
		"a long step":          of(4, append(hash, hash...), Run{0, 4, 2}),
		"no count":             of(4, hash, Run{3, 1, 1}, Run{2, 1, 0}),
		"more hashes":          of(4, append(hash, hash...), Run{3, 1, 1}),
		"fewer hashes":         of(4, hash, Run{2, 1, 2}),
		"numbers that wrap":    of(4, hash, Run{1<<32 - 1, 1<<32 - 1, 1<<32 - 1}),
		"too many runs":        of(64, bytes.Repeat(hash, MaxRuns+1), slices.Repeat([]Run{{1, 1, 1}}, MaxRuns+1)...),
		"a piece of a run":     with(4, make([]byte, 13)),
		"chain length":         with(3, make([]byte, 3)),
		"token count":          with(1, make([]byte, 5)),
		"hash length":          with(2, []byte{0, 7}),
		"broken hashes":        with(5, make([]byte, 9)),
		"long id":              with(6, bytes.Repeat([]byte("x"), MaxRequestIDBytes+1)),
		"sequence number":      with(7, make([]byte, 7)),
		"a frame too few":      fine[:7],
		"seen without hashes":  {[]byte(TagSeen), {0, 8}},
		"seen, hash length":    {[]byte(TagSeen), {8}, hash},
		"seen, broken hashes":  {[]byte(TagSeen), {0, 8}, make([]byte, 9)},
		"seen, frame too many": {[]byte(TagSeen), {0, 8}, hash, {}},
	} {
		if _, err := ParseRequest(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, frame := range [][]byte{nil, make([]byte, 7), make([]byte, 8), AppendGap(nil, 2, 2)} {
		if _, _, err := ParseGap(frame); !errors.Is(err, ErrMalformed) {
			t.Errorf("a gap of %x: %v", frame, err)
		}
	}
}

// TestAskingIsBounded: whatever a server says, a question is asked three times at
// the most, and what makes no sense is an error.
func TestAskingIsBounded(t *testing.T) {
	more := func(from, end int) [][]byte {
		return [][]byte{AppendGap(nil, from, end), AppendStatus(nil, 1, FlagMore)}
	}
	begin := func() *Asking {
		a := &Asking{Tokens: 1, Hashes: make([]byte, 8*1000), HashLen: 8, ID: "r", Stride: 128}
		a.Frames(1)
		return a
	}
	kinds := func(a *Asking, gaps ...[2]int) string {
		tags := string(a.Frames(1)[0])
		for _, gap := range gaps {
			if again, err := a.Heard(more(gap[0], gap[1])); !again || err != nil {
				t.Errorf("%v: %v, %v", gap, again, err)
			}
			tags += " " + string(a.Frames(1)[0])
		}
		return tags
	}
	if got := kinds(begin(), [2]int{16, 127}, [2]int{128, 255}); got != "lookup3 lookup3 lookup2" {
		t.Error(got)
	}
	if got := kinds(begin(), [2]int{0, 1000}); got != "lookup3 lookup2" {
		t.Error(got)
	}
	a := begin()
	_ = kinds(a, [2]int{0, 1000})
	for name, reply := range map[string][][]byte{
		"more than all": more(0, 1000), "no status": {{0, 0, 0, 0}}, "a short status": {{}, {1}}, "no gap": {{0, 0, 0, 0}, AppendStatus(nil, 1, FlagMore)},
	} {
		if again, err := a.Heard(reply); again || err == nil {
			t.Errorf("%s: %v, %v", name, again, err)
		}
	}
	if _, err := begin().Heard(more(900, 1001)); err == nil {
		t.Error("hashes behind the last can't be given")
	}
	for _, a := range []Asking{{Stride: 0, HashLen: 8, Hashes: make([]byte, 8000)}, {Stride: 128, HashLen: 8, Hashes: make([]byte, 8*256)}, {Stride: 128}} {
		if got := string(a.Frames(1)[0]); got != TagLookup2 {
			t.Errorf("%d bytes of hashes are asked about by a %s", len(a.Hashes), got)
		}
	}
}

// FuzzParseChain cuts the input into frames as FuzzParseRequest does; what parses
// has a place in the chain for every hash.
func FuzzParseChain(f *testing.F) {
	const cut = "\n--\n"
	f.Add(bytes.Join(EncodeLookup3(481, 8, 30, []Run{{0, 1, 2}, {9, 10, 1}}, make([]byte, 24), "id", 9), []byte(cut)))
	f.Add(bytes.Join(EncodeSeen(8, make([]byte, 24)), []byte(cut)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRequest(bytes.Split(data, []byte(cut)))
		if err != nil || r.Kind != KindLookup3 {
			return
		}
		given := 0
		var runs []Run
		for i := range r.Runs.Len() {
			run := r.Runs.At(i)
			runs = append(runs, run)
			for at := run.First; run.Count > 0; run.Count-- {
				if at < 0 || at >= r.Chain {
					t.Fatalf("hash %d of %d", at, r.Chain)
				}
				at += run.Step
				given++
			}
		}
		if given != r.Hashes.Len() || r.Chain > MaxChainHashes {
			t.Fatalf("%d hashes for %d places in a chain of %d", r.Hashes.Len(), given, r.Chain)
		}
		again := EncodeLookup3(r.Tokens, r.Hashes.HashLen(), r.Chain, runs, r.Hashes.Bytes(), string(r.ID), r.Seq)
		if got := string(bytes.Join(again, []byte(cut))); got != string(data) && !strings.Contains(string(r.Hashes.Bytes()), cut) {
			t.Errorf("%q encodes to %q", data, got)
		}
	})
}
