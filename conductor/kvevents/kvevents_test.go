package kvevents

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/ugorji/go/codec"
	"pgregory.net/rapid"
)

// golden returns what vLLM's encoder wrote, by name.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/vllm.hex")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		if found[name], err = hex.DecodeString(digits); err != nil {
			t.Fatal(err)
		}
	}
	if len(found) != 6 {
		t.Fatalf("%d batches were recorded", len(found))
	}
	return found
}

func ptr[T any](v T) *T { return &v }

var recordedHashes = []Hash{0x1122334455667788, ^Hash(0), 5}

// want is what the recorded batches mean.
var want = map[string]*Batch{
	"stored_full": {Time: 1.5, Rank: ptr(0), Events: []Event{
		&BlockStored{Hashes: recordedHashes[:1], TokenIDs: []uint32{1, 2, 70000, 5}, BlockSize: 4, Medium: MediumGPU},
	}},
	"stored_all_fields": {Time: 1790000000.25, Rank: ptr(3), Events: []Event{&BlockStored{
		Hashes: recordedHashes, Parent: ptr(Hash(77)), TokenIDs: []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, BlockSize: 4,
		LoraID: ptr(int64(9)), Medium: MediumCPU, LoraName: "a", Group: ptr(1), SpecKind: "sliding_window", Window: 64,
		HasExtraKeys: true, ExtraKeys: []byte("\x93\x91\xa1a\xc0\x92\x92\xa3img\xfd\xa4salt"),
	}}},
	"stored_placeholder": {Time: 2, Events: []Event{
		&BlockStored{Hashes: recordedHashes, Medium: MediumStorage, Group: ptr(0), SpecKind: "full_attention"},
	}},
	"removed_cleared": {Time: 3, Events: []Event{&BlockRemoved{Hashes: recordedHashes, Medium: MediumCPU, Group: ptr(2)}, &AllBlocksCleared{}}},
	"bytes_hashes": {Time: 4, Rank: ptr(1), Events: []Event{
		&BlockStored{Hashes: []Hash{0x18191a1b1c1d1e1f}, Parent: ptr(Hash(0x08090a0b0c0d0e0f)), TokenIDs: []uint32{1}, BlockSize: 1, Medium: "cpu"},
		&BlockRemoved{Hashes: []Hash{0x0101010101010101}},
	}},
	"positional": {Time: 1, Events: []Event{
		&BlockStored{
			Hashes: recordedHashes, Parent: ptr(Hash(7)), TokenIDs: []uint32{1, 2, 3}, BlockSize: 1, Medium: MediumGPU, Group: ptr(4), SpecKind: "full_attention",
		},
		&BlockRemoved{Hashes: recordedHashes[:1], Medium: MediumCPU},
		&AllBlocksCleared{},
	}},
}

func TestDecodesWhatVLLMWrites(t *testing.T) {
	d := NewDecoder()
	for name, data := range golden(t) {
		got, refused, err := d.Decode(data)
		if err != nil || refused != 0 {
			t.Errorf("%s: %d events refused: %v", name, refused, err)
			continue
		}
		if !reflect.DeepEqual(got, want[name]) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want[name])
		}
	}
}

func TestEncodesAsVLLMDoes(t *testing.T) {
	recorded := golden(t)
	e := NewEncoder()
	for _, name := range []string{"stored_full", "stored_placeholder", "removed_cleared"} {
		got, err := e.Encode(want[name])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, recorded[name]) {
			t.Errorf("%s:\n got %x\nwant %x", name, got, recorded[name])
		}
	}
}

func TestOneBadEventCostsItself(t *testing.T) {
	var data []byte
	events := []any{
		map[string]any{"type": "BlockMoved"}, nil, 7, []any{}, []any{3}, map[string]any{"type": "BlockRemoved", "block_hashes": []any{"x"}},
		map[string]any{"type": "BlockStored", "block_hashes": []any{1.5}}, map[string]any{"type": "BlockStored", "block_hashes": []any{1}, "block_size": -1},
		map[string]any{"type": "AllBlocksCleared", "new": []any{1, 2}},
	}
	if err := codec.NewEncoderBytes(&data, handle()).Encode([]any{1.0, events, nil}); err != nil {
		t.Fatal(err)
	}
	batch, refused, err := NewDecoder().Decode(data)
	if !errors.Is(err, ErrMalformed) || batch == nil || refused != len(events)-1 || len(batch.Events) != 1 {
		t.Fatalf("%+v, %d of %d refused, %v", batch, refused, len(events), err)
	}
}

func TestRefuses(t *testing.T) {
	deep := append(bytes.Repeat([]byte{0x91}, 1<<16), 0xc0)
	for name, data := range map[string][]byte{
		"nothing": {}, "text": []byte("\xa3abc"), "cut": golden(t)["stored_full"][:40], "more": append(golden(t)["removed_cleared"], 0),
		"deep":       append([]byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91}, deep...),
		"long array": {0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"no time":    {0x93, 0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 1, 0x90, 0xc0},
	} {
		if batch, _, err := NewDecoder().Decode(data); !errors.Is(err, ErrMalformed) || batch != nil {
			t.Errorf("%s: %+v, %v", name, batch, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	hashes := rapid.SliceOfN(rapid.Map(rapid.Uint64(), func(v uint64) Hash { return Hash(v) }), 1, 20)
	medium := rapid.SampledFrom([]string{"", MediumCPU, MediumStorage, "x"})
	group := rapid.Ptr(rapid.IntRange(0, 300), true)
	event := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) Event {
			s := &BlockStored{
				Hashes: hashes.Draw(t, "hashes"), BlockSize: rapid.IntRange(0, 1<<20).Draw(t, "size"), Medium: medium.Draw(t, "medium"),
				LoraName: medium.Draw(t, "lora"), Group: group.Draw(t, "group"), Window: rapid.IntRange(0, 99).Draw(t, "window"),
				TokenIDs: rapid.SliceOfN(rapid.Uint32(), 1, 40).Draw(t, "tokens"), LoraID: rapid.Ptr(rapid.Int64(), true).Draw(t, "id"),
			}
			if rapid.Bool().Draw(t, "extra") {
				s.HasExtraKeys, s.ExtraKeys = true, []byte{0x91, 0xc0}
			}
			if rapid.Bool().Draw(t, "parent") {
				s.Parent = ptr(Hash(rapid.Uint64().Draw(t, "parent hash")))
			}
			return s
		}),
		rapid.Custom(func(t *rapid.T) Event {
			return &BlockRemoved{Hashes: hashes.Draw(t, "hashes"), Medium: medium.Draw(t, "medium"), Group: group.Draw(t, "group")}
		}),
		rapid.Just[Event](&AllBlocksCleared{}),
	)
	e, d := NewEncoder(), NewDecoder()
	rapid.Check(t, func(t *rapid.T) {
		in := &Batch{Time: rapid.Float64Range(0, 4e9).Draw(t, "time"), Rank: rapid.Ptr(rapid.IntRange(0, 64), true).Draw(t, "rank"), Events: rapid.SliceOf(event).Draw(t, "events")}
		data, err := e.Encode(in)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := d.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if len(in.Events) == 0 {
			in.Events = out.Events
		}
		if !reflect.DeepEqual(in, out) {
			t.Fatalf("in %+v out %+v", in, out)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, data := range golden(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		batch, _, err := NewDecoder().Decode(data)
		if batch == nil {
			if err == nil {
				t.Fatal("neither batch nor error")
			}
			return
		}
		again, err := NewEncoder().Encode(batch)
		if err != nil {
			t.Fatal(err)
		}
		// Extra keys are passed on as they came; all else must be readable.
		for _, e := range batch.Events {
			if s, ok := e.(*BlockStored); ok && s.HasExtraKeys {
				return
			}
		}
		if _, refused, err := NewDecoder().Decode(again); err != nil || refused != 0 {
			t.Fatalf("what was read can't be read again: %v", err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, 128*16)
	for i := range tokens {
		tokens[i] = random.Uint32N(150_000) // of a large vocabulary: half of them have five bytes
	}
	hashes := make([]Hash, 128)
	for i := range hashes {
		hashes[i] = Hash(i) * 0x9E3779B97F4A7C15
	}
	data, err := NewEncoder().Encode(&Batch{Time: 1, Events: []Event{&BlockStored{Hashes: hashes, TokenIDs: tokens, BlockSize: 16}}})
	if err != nil {
		b.Fatal(err)
	}
	d := NewDecoder()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := d.Decode(data); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*128/b.Elapsed().Seconds(), "blocks/s")
}
