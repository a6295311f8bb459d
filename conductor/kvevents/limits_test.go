package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
)

// batchOf is a batch of so many equal events.
func batchOf(n int, event string) []byte {
	data := append([]byte{0x92, 0x01, codeArray32}, binary.BigEndian.AppendUint32(nil, uint32(n))...)
	return append(data, bytes.Repeat([]byte(event), n)...)
}

// array is the head of an array, and n values of a byte.
func array(n int) string {
	return string(append(append([]byte{codeArray32}, binary.BigEndian.AppendUint32(nil, uint32(n))...), make([]byte, n)...))
}

// What takes far more memory than it has bytes is bounded.
func TestBatchesAreBounded(t *testing.T) {
	removedOf := func(n int) string { return "\x92\xacBlockRemoved" + array(n) }
	storedOf := func(tokens int) string { return "\x94\xabBlockStored\x91\x01\xc0" + array(tokens) }
	for name, data := range map[string][]byte{
		"events":         batchOf(maxEvents+1, "\x91\xa6stored"),
		"refused events": batchOf(maxEvents+1, "\xc0"),
		"hashes":         batchOf(5, removedOf(maxHashes/4)),
		"tokens":         batchOf(3, storedOf(maxTokens/2)),
		"bytes":          batchOf(1, storedOf(MaxBatchBytes)),
	} {
		if batch, _, err := NewDecoder().Decode(data); !errors.Is(err, ErrMalformed) || batch != nil {
			t.Errorf("%s: taken, %v", name, err)
		}
	}
	for name, data := range map[string][]byte{"hashes": batchOf(1, removedOf(maxHashes+1)), "tokens": batchOf(1, storedOf(maxTokens+1))} {
		if batch, refused, err := NewDecoder().Decode(data); !errors.Is(err, ErrMalformed) || refused != 1 || len(batch.Events) > 0 {
			t.Errorf("%s of an event: %d refused, %v", name, refused, err)
		}
	}
	for name, data := range map[string][]byte{
		"events": batchOf(maxEvents, "\x91\xa6stored"), "hashes": batchOf(4, removedOf(maxHashes/4)), "tokens": batchOf(2, storedOf(maxTokens/2)),
	} {
		if _, refused, err := NewDecoder().Decode(data); err != nil || refused > 0 {
			t.Errorf("as many %s as are allowed: %d refused, %v", name, refused, err)
		}
	}
}

// A large batch leaves nothing large behind.
func TestMemoryIsGivenBack(t *testing.T) {
	d := NewDecoder()
	small := golden(t)["stored_full"]
	for _, data := range [][]byte{
		batchOf(maxEvents, "\x91\xa6stored"), batchOf(maxEvents, "\x91\xa7removed"), batchOf(2, "\x92\xacBlockRemoved"+array(maxHashes/2)),
		batchOf(2, "\x94\xabBlockStored\x91\x01\xc0"+array(maxTokens/2)),
		batchOf(1, "\x82\xa4type\xa7removed\xa6medium"+string([]byte{0xdb, 0, 0x10, 0, 0})+string(make([]byte, 1<<20))),
	} {
		if _, _, err := d.Decode(data); err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatal(err)
		}
		if got, _, err := d.Decode(small); err != nil || !reflect.DeepEqual(got, want["stored_full"]) {
			t.Fatalf("%v: %s", err, show(t, got))
		}
		bytes := 8*cap(d.fields.hashes) + 4*cap(d.fields.tokens) + 16*cap(d.batch.Events) + 8*(cap(d.stored)+cap(d.removed))
		for _, slot := range d.stored {
			bytes += 8*cap(slot.event.Hashes) + 4*cap(slot.event.TokenIDs) + len(slot.event.ExtraKeys)
		}
		for _, slot := range d.removed {
			bytes += 8 * cap(slot.event.Hashes)
		}
		for text := range d.texts {
			bytes += len(text)
		}
		if bytes > 1<<16 {
			t.Errorf("%d bytes are kept of a batch of %d", bytes, len(data))
		}
	}
}

// Only the first reason is put into words.
func TestRefusalsAreCheap(t *testing.T) {
	d := NewDecoder()
	data := batchOf(maxEvents, "\x91\xa6strode")
	if allocs := testing.AllocsPerRun(2, func() { _, _, _ = d.Decode(data) }); allocs > 100 {
		t.Errorf("%v allocations", allocs)
	}
	if _, refused, err := d.Decode(data); refused != maxEvents || !errors.Is(err, ErrMalformed) {
		t.Errorf("%d refused, %v", refused, err)
	}
}

// What may have taken blocks back, and can't be read, makes all before it doubtful.
func TestDoubt(t *testing.T) {
	good, last := []any{kindRemoved, []any{1}}, []any{kindRemoved, []any{2}}
	for name, test := range map[string]struct {
		event any
		want  bool
	}{
		"removed":      {object{"type": kindRemoved, "block_hashes": []any{"x"}}, true},
		"cleared":      {object{"type": kindCleared, "medium": 7}, true},
		"unknown":      {object{"type": "BlocksMoved"}, true},
		"no event":     {nil, true},
		"no kind":      {object{"block_hashes": []any{1}}, true},
		"stored":       {object{"type": kindStored, "block_hashes": []any{"x"}}, false},
		"stored array": {[]any{kindStored, nil}, false},
	} {
		batch, refused, err := NewDecoder().Decode(encoded(t, []any{1.0, []any{good, test.event, last}, nil}))
		events := 2
		if test.want {
			events = 1
		}
		if !errors.Is(err, ErrMalformed) || refused != 1 || batch.Doubtful != test.want || len(batch.Events) != events {
			t.Errorf("%s: %s, %d refused, %v", name, show(t, batch), refused, err)
		}
	}
}
