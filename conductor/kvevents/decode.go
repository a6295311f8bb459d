package kvevents

import (
	"fmt"
	"math"

	"github.com/ugorji/go/codec"
)

// MaxBatchBytes bounds a batch: a million blocks of 16 tokens have less.
const MaxBatchBytes = 128 << 20

// Decoder reads batches. It is not safe for concurrent use.
type Decoder struct {
	batch, event *codec.Decoder
}

// NewDecoder makes a decoder.
func NewDecoder() *Decoder {
	return &Decoder{batch: codec.NewDecoderBytes(nil, handle()), event: codec.NewDecoderBytes(nil, handle())}
}

// Decode reads a batch. refused counts the events that could not be read: of a kind
// that is not known, or with fields that do not fit; err has the first reason. A
// batch that is none at all is ErrMalformed, and nothing of it is returned. Nothing
// of data is kept.
func (d *Decoder) Decode(data []byte) (batch *Batch, refused int, err error) {
	if len(data) > MaxBatchBytes {
		return nil, 0, malformed("%d bytes; at most %d", len(data), MaxBatchBytes)
	}
	var w wireBatch
	d.batch.ResetBytes(data)
	if err := d.batch.Decode(&w); err != nil {
		return nil, 0, malformed("%v", err)
	}
	if n := d.batch.NumBytesRead(); n != len(data) {
		return nil, 0, malformed("%d bytes behind its end", len(data)-n)
	}
	if math.IsNaN(w.Time) || math.IsInf(w.Time, 0) {
		return nil, 0, malformed("time %v", w.Time)
	}
	batch = &Batch{Time: w.Time, Rank: w.Rank, Events: make([]Event, 0, len(w.Events))}
	for _, raw := range w.Events {
		event, fault := d.decodeEvent(raw)
		if fault != nil {
			refused++
			if err == nil {
				err = fault
			}
			continue
		}
		batch.Events = append(batch.Events, event)
	}
	return batch, refused, err
}

// decodeEvent reads one event.
func (d *Decoder) decodeEvent(raw []byte) (Event, error) {
	kind, err := d.kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case kindStored:
		return decodeAs(d, raw, (*wireStored).event)
	case kindRemoved:
		return decodeAs(d, raw, (*wireRemoved).event)
	case kindCleared:
		return &AllBlocksCleared{}, nil
	}
	return nil, malformed("event of kind %.40q", kind)
}

// kindOf reads an event's class name: the first of an array, or "type" of a map.
func (d *Decoder) kindOf(raw []byte) (string, error) {
	if len(raw) == 0 || raw[0] == msgpackNil {
		return "", malformed("an event that is nil")
	}
	var tag wireTag
	d.event.ResetBytes(raw)
	if err := d.event.Decode(&tag); err != nil {
		return "", malformed("event: %v", err)
	}
	return tag.Type, nil
}

const msgpackNil = 0xc0

func decodeAs[W any](d *Decoder, raw []byte, event func(*W) (Event, error)) (Event, error) {
	w := new(W)
	d.event.ResetBytes(raw)
	if err := d.event.Decode(w); err != nil {
		return nil, malformed("%T: %v", w, err)
	}
	return event(w)
}

func (w *wireStored) event() (Event, error) {
	hashes, err := hashesOf(w.Hashes)
	if err != nil {
		return nil, err
	}
	s := &BlockStored{
		Hashes: hashes, TokenIDs: w.TokenIDs, BlockSize: w.BlockSize, LoraID: w.LoraID,
		Medium: textOf(w.Medium), LoraName: textOf(w.LoraName), Group: w.Group, SpecKind: textOf(w.SpecKind),
	}
	if len(s.TokenIDs) == 0 {
		s.TokenIDs = nil
	}
	if s.BlockSize < 0 {
		return nil, malformed("block_size %d", s.BlockSize)
	}
	if w.Parent != nil {
		parent, err := hashOf(w.Parent)
		if err != nil {
			return nil, fmt.Errorf("parent_block_hash: %w", err)
		}
		s.Parent = &parent
	}
	if w.Window != nil {
		s.Window = *w.Window
	}
	if len(w.ExtraKeys) > 0 && w.ExtraKeys[0] != msgpackNil {
		s.HasExtraKeys, s.ExtraKeys = true, append([]byte(nil), w.ExtraKeys...)
	}
	return s, nil
}

func (w *wireRemoved) event() (Event, error) {
	hashes, err := hashesOf(w.Hashes)
	if err != nil {
		return nil, err
	}
	return &BlockRemoved{Hashes: hashes, Medium: textOf(w.Medium), Group: w.Group}, nil
}

func hashesOf(wire []any) ([]Hash, error) {
	hashes := make([]Hash, len(wire))
	for i, v := range wire {
		h, err := hashOf(v)
		if err != nil {
			return nil, fmt.Errorf("block_hashes[%d]: %w", i, err)
		}
		hashes[i] = h
	}
	return hashes, nil
}

// hashOf takes a number, also a negative one as a publisher with signed numbers
// writes it, or the bytes of a whole hash.
func hashOf(v any) (Hash, error) {
	switch v := v.(type) {
	case uint64:
		return Hash(v), nil
	case int64:
		return Hash(v), nil //nolint:gosec // the same 64 bits
	case []byte:
		if len(v) >= 8 {
			return HashOf(v), nil
		}
		return 0, malformed("a block hash of %d bytes", len(v))
	case string:
		if len(v) >= 8 {
			return HashOf([]byte(v)), nil
		}
		return 0, malformed("a block hash of %d bytes", len(v))
	}
	return 0, malformed("a block hash that is a %T", v)
}

func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
