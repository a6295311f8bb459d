package prompt

import (
	"errors"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

func TestParseScale(t *testing.T) {
	for text, want := range map[string]int{"1": 512, "0.25": 128, "1/4": 128, "2": 1024, "3/32": 48, "1/512": 1} {
		if got, err := ParseScale(text); err != nil || got.BlockTokens != want {
			t.Errorf("%s: %d, %v; want %d", text, got.BlockTokens, err, want)
		}
	}
	for _, text := range []string{"", "x", "0", "-1", "1/0", "0/0", "1/3", "1/1024", "1e9", "NaN", "Inf", "1/4/2", "1/"} {
		if got, err := ParseScale(text); !errors.Is(err, ErrScale) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestScaleCheck(t *testing.T) {
	for _, test := range []struct {
		scaled, engine int
		fits           bool
	}{{128, 128, true}, {128, 16, true}, {512, 16, true}, {64, 128, false}, {48, 32, false}, {128, 0, false}} {
		if err := (Scale{test.scaled}).Check(test.engine); (err == nil) != test.fits || err != nil && !errors.Is(err, ErrScale) {
			t.Errorf("%d on %d: %v", test.scaled, test.engine, err)
		}
	}
}

// A scaled prompt has as many blocks as the trace's, and a part of a block stays a
// part.
func TestTokens(t *testing.T) {
	for _, scaled := range []int{1, 16, 128, 512, 1024} {
		s := Scale{scaled}
		for input := int64(1); input < 1600; input++ {
			r := trace.Request{InputTokens: input}
			got := s.Tokens(&r)
			if blocks := (got + scaled - 1) / scaled; int64(blocks) != (input+511)/512 {
				t.Fatalf("%d tokens at %d a block: %d tokens", input, scaled, got)
			}
			if scaled == 512 && int64(got) != input {
				t.Fatalf("%d tokens became %d unscaled", input, got)
			}
		}
	}
	for _, test := range []struct {
		tokens int64
		factor float64
		want   int
	}{{100, 0.25, 25}, {0, 1, 1}, {1, 0.01, 1}, {500, 1, 500}} {
		if got := Output(test.tokens, test.factor); got != test.want {
			t.Errorf("Output(%d, %g) = %d", test.tokens, test.factor, got)
		}
	}
}

func TestMaker(t *testing.T) {
	const scaled, first, vocabulary = 128, 100, 4096
	make := func(seed uint64) *Maker {
		m, err := NewMaker(Scale{scaled}, 16, first, vocabulary, seed)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := make(1)
	a := m.Append(nil, &trace.Request{InputTokens: 1300, HashIDs: []int64{7, 8, 9}})
	b := m.Append(nil, &trace.Request{InputTokens: 1536, HashIDs: []int64{8, 7, 9}})
	if len(a) != 2*scaled+69 || len(b) != 3*scaled {
		t.Fatalf("%d and %d tokens", len(a), len(b))
	}
	if !slices.Equal(a[:scaled], b[scaled:2*scaled]) || !slices.Equal(a[scaled:2*scaled], b[:scaled]) {
		t.Error("equal ids, different tokens")
	}
	if !slices.Equal(a[2*scaled:], b[2*scaled:][:69]) {
		t.Error("the last block's part is not the block's begin")
	}
	for _, token := range a {
		if token < first || token >= vocabulary {
			t.Fatalf("token %d", token)
		}
	}
	if other := make(2).Append(nil, &trace.Request{InputTokens: 512, HashIDs: []int64{7}}); slices.Equal(other[:16], a[:16]) {
		t.Error("another seed gives the same tokens")
	}
	seen := map[[16]uint32]int64{}
	for id := int64(0); id < 20_000; id++ {
		block := m.Append(nil, &trace.Request{InputTokens: 512, HashIDs: []int64{id}})
		if other, twice := seen[[16]uint32(block)]; twice {
			t.Fatalf("ids %d and %d begin alike", other, id)
		}
		seen[[16]uint32(block)] = id
	}
}

func TestNewMakerRefuses(t *testing.T) {
	for _, test := range []struct {
		engine, first, vocabulary int
		want                      error
	}{{48, 0, 4096, ErrScale}, {16, 10, 11, ErrVocabulary}, {16, -1, 100, ErrVocabulary}, {4, 0, 4096, ErrVocabulary}} {
		if _, err := NewMaker(Scale{128}, test.engine, test.first, test.vocabulary, 0); !errors.Is(err, test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	m, err := NewMaker(Scale{512}, 16, 2000, 32768, 1)
	if err != nil {
		b.Fatal(err)
	}
	r := trace.Request{InputTokens: 512 * 24}
	for id := range int64(24) {
		r.HashIDs = append(r.HashIDs, id)
	}
	var dst []uint32
	b.SetBytes(4 * r.InputTokens)
	for b.Loop() {
		dst = m.Append(dst[:0], &r)
	}
}
