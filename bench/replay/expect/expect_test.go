package expect

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay/prompt"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

func request(input int64, ids ...int64) *trace.Request {
	return &trace.Request{InputTokens: input, HashIDs: ids}
}

func TestCached(t *testing.T) {
	scale := prompt.Scale{BlockTokens: 128}
	for _, test := range []struct {
		name   string
		before []*trace.Request
		r      *trace.Request
		want   int
	}{
		{"nothing", nil, request(1024, 1, 2), 0},
		{"a prefix", []*trace.Request{request(1024, 1, 2)}, request(1536, 1, 2, 3), 256},
		{"the last token is computed", []*trace.Request{request(1024, 1, 2)}, request(1024, 1, 2), 256 - 32},
		{"a part of a block", []*trace.Request{request(1224, 1, 2, 3)}, request(1536, 1, 2, 3), 256 + 32}, // 50 of 128 tokens: one block of 32
		{"to a part of a block", []*trace.Request{request(1536, 1, 2, 3)}, request(1224, 1, 2, 3), 256 + 32},
		{"the longest counts", []*trace.Request{request(1400, 1, 2, 3), request(1224, 1, 2, 3)}, request(1536, 1, 2, 3), 256 + 64},
		{"behind a part nothing", []*trace.Request{request(1224, 1, 2, 3)}, request(2048, 1, 2, 3, 4), 256 + 32},
		{"other prefix", []*trace.Request{request(1024, 5, 2)}, request(1024, 1, 2), 0},
		{"two parents", []*trace.Request{request(1024, 5, 2), request(512, 1)}, request(1024, 1, 2), 128},
		{"one token", []*trace.Request{request(1, 1)}, request(1, 1), 0},
	} {
		tree := NewTree(32, scale.BlockTokens)
		for i, b := range test.before {
			tree.Add(i, b, scale.Tokens(b))
		}
		tokens := scale.Tokens(test.r)
		if got := tree.Cached(99, test.r, tokens); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
		// The prompt itself does not count.
		tree.Add(99, test.r, tokens)
		if got := tree.Cached(99, test.r, tokens); got != test.want {
			t.Errorf("%s, with the prompt itself: %d, want %d", test.name, got, test.want)
		}
	}
}

// Against tokens: what an engine does that compares chains of whole blocks.
func TestCachedOnTokens(t *testing.T) {
	const engine, scaled = 16, 64
	scale := prompt.Scale{BlockTokens: scaled}
	maker, err := prompt.NewMaker(scale, engine, 0, 4096, 3)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		tree, engineHas := NewTree(engine, scaled), map[string]bool{}
		for i := range 20 {
			r := request(1 + rng.Int64N(5*512))
			for range (r.InputTokens + 511) / 512 {
				r.HashIDs = append(r.HashIDs, rng.Int64N(2)+int64(len(r.HashIDs))*2)
			}
			tokens := maker.Append(nil, r)
			want := 0
			for end := engine; end <= len(tokens)-1 && engineHas[key(tokens[:end])]; end += engine {
				want = end
			}
			if got := tree.Cached(i, r, len(tokens)); got != want {
				t.Fatalf("%+v: %d, the engine has %d", r, got, want)
			}
			tree.Add(i, r, len(tokens))
			for end := engine; end <= len(tokens); end += engine {
				engineHas[key(tokens[:end])] = true
			}
		}
	}
}

func key(tokens []uint32) string {
	text := make([]rune, len(tokens))
	for i, token := range tokens {
		text[i] = rune(token)
	}
	return string(text)
}

func TestCompute(t *testing.T) {
	long, short := request(1536, 1, 2, 3), request(1024, 1, 2)
	at := func(r *trace.Request, sent, first time.Duration) Sent {
		return Sent{Request: r, Tokens: int(r.InputTokens), At: sent, First: first}
	}
	for _, test := range []struct {
		name string
		sent []Sent
		want []Bounds
	}{
		{"one at a time", []Sent{at(short, 0, 1), at(long, 2, 3)}, []Bounds{{0, 0}, {1024, 1024}}},
		{"overlapping", []Sent{at(short, 0, 5), at(long, 2, 7)}, []Bounds{{0, 1008}, {0, 1024}}},
		{"sent behind its first token", []Sent{at(short, 0, 1), at(long, 5, 7), at(long, 8, 9)}, []Bounds{{0, 0}, {1024, 1024}, {1520, 1520}}},
		{"at the same moment", []Sent{at(short, 0, 2), at(long, 2, 3)}, []Bounds{{0, 1008}, {0, 1024}}},
		{"failed", []Sent{at(long, 0, Never), at(short, 2, 3)}, []Bounds{{0, 0}, {0, 1008}}},
		{"fails itself", []Sent{at(short, 0, 1), at(long, 2, Never)}, []Bounds{{0, 0}, {1024, 1024}}},
	} {
		got := Compute(16, 512, test.sent)
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("%s: request %d: %+v, want %+v", test.name, i, got[i], test.want[i])
			}
		}
	}
}

func TestInOrder(t *testing.T) {
	requests := []trace.Numbered{{Request: *request(1024, 1, 2)}, {Request: *request(1536, 1, 2, 3)}, {Request: *request(512, 4)}, {Request: *request(1536, 1, 2, 3)}}
	got := InOrder(16, 512, requests, func(r *trace.Request) int { return int(r.InputTokens) })
	for i, want := range []int{0, 1024, 0, 1520} {
		if got[i] != want {
			t.Errorf("request %d: %d, want %d", i, got[i], want)
		}
	}
}
