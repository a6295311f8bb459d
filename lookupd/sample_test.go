package lookupd

import (
	"bytes"
	"log/slog"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/missratio"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
)

// shown keeps what a sampler is shown: of each chunk the first byte of its hash.
type shown struct {
	scope  missratio.Scope
	chunks []byte
}

func (s *shown) Lookup(scope missratio.Scope, hashes []byte, stride int) {
	s.scope, s.chunks = scope, nil
	for at := 0; at+8 <= len(hashes); at += stride {
		s.chunks = append(s.chunks, hashes[at])
	}
}

// A chunk is shown by its last hash, with the memory of all groups; a chunk that
// is not whole is not shown.
func TestSampling(t *testing.T) {
	spec := kv.NamespaceSpec{
		Model: "m", HashBytes: 16, HashBlockTokens: 16,
		Groups: []kv.GroupSpec{{BlockTokens: 16, ShardBytes: 100, Shards: 2}, {BlockTokens: 64, ShardBytes: 1000, Shards: 1}},
	}
	var data []byte
	for i := range 7 {
		data = append(data, bytes.Repeat([]byte{byte(i + 1)}, 16)...)
	}
	hashes, err := kv.NewHashBlob(data, 16)
	if err != nil {
		t.Fatal(err)
	}
	check := func(want []byte, chunkBytes uint64) {
		t.Helper()
		got := &shown{}
		sampling := newSampling(got, &spec)
		sampling.note(hashes)
		if !slices.Equal(got.chunks, want) || got.scope.ChunkBytes != chunkBytes {
			t.Errorf("shown %v of %d bytes, want %v of %d", got.chunks, got.scope.ChunkBytes, want, chunkBytes)
		}
	}
	check([]byte{1, 2, 3, 4, 5, 6, 7}, 200+250)
	spec.Groups[0].BlockTokens = 48
	check([]byte{3, 6}, 200+750)
	spec.Groups[0].BlockTokens = 112
	check([]byte{7}, 200+1750)
	spec.Groups[0].BlockTokens = 128
	check(nil, 0)
	off := newSampling(nil, &spec)
	off.note(hashes)
	a, b := newSampling(&shown{}, &spec), spec
	b.Model = "n"
	if c := newSampling(&shown{}, &b); a.scope.Salt == c.scope.Salt {
		t.Error("two namespaces have one salt")
	}
}

// A lookup is shown to the sampler behind its answer, once; other requests are
// not shown.
func TestLookupsAreSampled(t *testing.T) {
	got, h := &shown{}, newBareHandler(t)
	h.sampling, h.log = newSampling(got, &h.engine.spec), slog.New(slog.DiscardHandler)
	hashBytes := h.engine.spec.HashBytes
	blob := bytes.Repeat([]byte{7}, 5*hashBytes)
	h.answer(wire.EncodeLookup(5*16, hashBytes, blob))
	if got.chunks != nil {
		t.Error("shown before the answer is out")
	}
	h.finish()
	if want := bytes.Repeat([]byte{7}, 5); !bytes.Equal(got.chunks, want) {
		t.Errorf("shown %v, want %v", got.chunks, want)
	}
	got.chunks = nil
	h.finish()
	h.handle([][]byte{[]byte("nonsense")})
	if got.chunks != nil {
		t.Error("shown again")
	}
}
