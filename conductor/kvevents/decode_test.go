package kvevents

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/ugorji/go/codec"
	"pgregory.net/rapid"
)

func encoded(t interface{ Fatal(...any) }, v any) []byte {
	var data []byte
	if err := codec.NewEncoderBytes(&data, handle()).Encode(v); err != nil {
		t.Fatal(err)
	}
	return data
}

func show(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type object = map[string]any

func TestDecodesWhatOthersWrite(t *testing.T) {
	for name, test := range map[string]struct {
		batch any
		want  *Batch
	}{
		"mooncake_master": {
			[]any{int64(1790000000250), []any{
				object{
					"event_id": 7, "timestamp": int64(1790000000250), "event_type": "stored", "model_name": nil, "block_size": nil, "additional_salt": nil,
					"lora_name": nil, "tenant_id": "t", "backend_id": "store-1", "group_id": "g", "medium": "cpu", "dp_rank": nil, "object_key": "k",
					"seq_hashes": []any{uint64(1<<63 + 5)}, "block_hashes": []any{int64(-1<<63 + 5)}, "base_block_idx": 0, "parent_hash": nil, "token_ids": nil,
				},
				object{"event_type": "removed", "type": "BlockRemoved", "block_hashes": []any{int64(-2)}, "seq_hashes": []any{^uint64(1)}, "medium": "disk", "tenant_id": "t", "backend_id": "store-1"},
				object{"event_type": "stored", "seq_hashes": []any{}},
				object{"event_type": "removed", "medium": "cpu", "object_key": "l", "seq_hashes": []any{}},
			}, 0},
			&Batch{Time: 1790000000.25, Rank: ptr(0), Events: []Event{
				&BlockStored{Hashes: []Hash{1<<63 + 5}, Medium: "cpu", Tenant: "t", Backend: "store-1", ObjectKey: []byte("k")},
				&BlockRemoved{Hashes: []Hash{^Hash(1)}, Medium: "disk", Tenant: "t", Backend: "store-1"},
				&BlockStored{}, &BlockRemoved{Medium: "cpu", ObjectKey: []byte("l")},
			}},
		},
		"SGLang: arrays with signed hashes": {
			[]any{2.5, []any{
				[]any{"BlockStored", []any{int64(-3), 4}, int64(-9), []any{1, 2}, 1, nil, "GPU"},
				[]any{"BlockRemoved", []any{int64(-3)}}, []any{"AllBlocksCleared"},
			}},
			&Batch{Time: 2.5, Events: []Event{
				&BlockStored{Hashes: []Hash{^Hash(2), 4}, Parent: ptr(^Hash(8)), TokenIDs: []uint32{1, 2}, BlockSize: 1, Medium: MediumGPU},
				&BlockRemoved{Hashes: []Hash{^Hash(2)}}, &AllBlocksCleared{},
			}},
		},
		"more fields than there are today": {
			[]any{1.0, []any{
				object{"type": "BlockRemoved", "block_hashes": []any{1}, "z": object{"deep": []any{[]any{nil, true, 1.5}}}, "a": []byte{1}},
				[]any{"BlockRemoved", []any{2}, nil, 3, "more", []any{}},
			}, nil, "and more"},
			&Batch{Time: 1, Events: []Event{&BlockRemoved{Hashes: []Hash{1}}, &BlockRemoved{Hashes: []Hash{2}, Group: ptr(3)}}},
		},
	} {
		got, refused, err := NewDecoder().Decode(encoded(t, test.batch))
		if err != nil || refused != 0 || show(t, got) != show(t, test.want) {
			t.Errorf("%s: %d refused, %v\n got %s\nwant %s", name, refused, err, show(t, got), show(t, test.want))
		}
	}
}

// The two encodings of an event, and fields in any order, mean the same.
func TestMapsAndArraysMeanTheSame(t *testing.T) {
	d := NewDecoder()
	decode := func(t *rapid.T, event any) string {
		batch, refused, err := d.Decode(encoded(t, []any{1.0, []any{event}, nil}))
		if err != nil || refused != 0 {
			t.Fatalf("%v: %v", event, err)
		}
		text, _ := json.Marshal(batch)
		return string(text)
	}
	hash := rapid.OneOf(
		rapid.Map(rapid.Uint64(), func(v uint64) any { return v }), rapid.Map(rapid.Int64Max(-1), func(v int64) any { return v }),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 8, 40), func(v []byte) any { return v }),
	)
	name := rapid.Ptr(rapid.StringMatching(`[a-z]{0,40}`), true)
	rapid.Check(t, func(t *rapid.T) {
		values := []any{
			rapid.SliceOfN(hash, 0, 20).Draw(t, "hashes"), nil, rapid.SliceOf(rapid.Uint32()).Draw(t, "tokens"), rapid.IntRange(0, 1<<17).Draw(t, "size"),
			rapid.Ptr(rapid.Int64(), true).Draw(t, "lora"), name.Draw(t, "medium"), name.Draw(t, "name"), []any{nil, []any{"x", -3}},
			rapid.Ptr(rapid.IntRange(0, 1<<17), true).Draw(t, "group"), name.Draw(t, "kind"), rapid.IntRange(0, 9).Draw(t, "window"),
		}
		if rapid.Bool().Draw(t, "has a parent") {
			values[1] = hash.Draw(t, "parent")
		}
		array, mapped := []any{kindStored}, object{"type": kindStored}
		for i, v := range values {
			array, mapped[storedOrder(i)] = append(array, v), v
		}
		if a, b := decode(t, array), decode(t, mapped); a != b {
			t.Fatalf("%s\n%s", a, b)
		}
	})
}

// Every value that the codec can read the cursor can pass over, and no other.
func FuzzSkip(f *testing.F) {
	for _, data := range golden(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := cursor{data: data}
		c.skip()
		if errors.Is(c.err, errDeep) {
			return
		}
		h := &codec.MsgpackHandle{}
		h.Raw = true
		var raw codec.Raw
		err := codec.NewDecoderBytes(data, h).Decode(&raw)
		if (err == nil) != (c.err == nil) || err == nil && len(raw) != c.at {
			t.Fatalf("%x: codec %v, %d bytes; cursor %v, %d bytes", data, err, len(raw), c.err, c.at)
		}
	})
}

func TestABatchIsFilledAnew(t *testing.T) {
	d := NewDecoder()
	recorded := golden(t)
	for range 3 {
		for name, data := range recorded {
			got, _, err := d.Decode(data)
			if err != nil || !reflect.DeepEqual(got, want[name]) {
				t.Fatalf("%s: %v\n got %s\nwant %s", name, err, show(t, got), show(t, want[name]))
			}
		}
	}
	data := recorded["stored_full"]
	if allocs := testing.AllocsPerRun(100, func() { _, _, _ = d.Decode(data) }); allocs > 1 { // the rank
		t.Errorf("%v allocations a batch", allocs)
	}
}

func TestFrames(t *testing.T) {
	seq := func(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
	batch := []byte("batch")
	for name, test := range map[string]struct {
		frames [][]byte
		want   Message
	}{
		"with a topic":          {[][]byte{{}, []byte("topic"), seq(7), batch}, Message{Topic: "topic", Seq: 7, Payload: batch}},
		"without":               {[][]byte{{}, seq(7), batch}, Message{Seq: 7, Payload: batch}},
		"its end":               {[][]byte{{}, {}, seq(endSeq), {}}, Message{End: true}},
		"its end without topic": {[][]byte{{}, seq(endSeq), {}}, Message{End: true}},
	} {
		if got, err := ParseReplay(test.frames); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := ParseLive([][]byte{[]byte("topic"), seq(1), batch}); err != nil || !reflect.DeepEqual(got, Message{Topic: "topic", Seq: 1, Payload: batch}) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, frames := range map[string][][]byte{
		"none": nil, "two": {seq(1), batch}, "a short number": {{}, {1}, batch}, "five": {{}, {}, {}, seq(1), batch}, "no empty one": {{1}, seq(1), batch},
	} {
		if m, err := ParseReplay(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		if m, err := ParseLive(frames); !errors.Is(err, ErrMalformed) && name != "no empty one" {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}
