package kvevents

import (
	"fmt"

	"github.com/ugorji/go/codec"
)

// Encoder writes batches. It is not safe for concurrent use.
type Encoder struct {
	buf []byte
	enc *codec.Encoder
}

// NewEncoder makes an encoder.
func NewEncoder() *Encoder {
	e := &Encoder{}
	e.enc = codec.NewEncoderBytes(&e.buf, handle())
	return e
}

// Encode returns the bytes of a batch, which are the caller's.
func (e *Encoder) Encode(b *Batch) ([]byte, error) {
	out := outBatch{Time: b.Time, Rank: b.Rank, Events: make([]any, len(b.Events))}
	for i, event := range b.Events {
		switch event := event.(type) {
		case *BlockStored:
			out.Events[i] = event.wire()
		case *BlockRemoved:
			out.Events[i] = &wireRemoved{Type: kindRemoved, Hashes: wireHashes(event.Hashes), Medium: optional(event.Medium), Group: event.Group}
		case *AllBlocksCleared:
			out.Events[i] = &wireCleared{Type: kindCleared}
		default:
			return nil, fmt.Errorf("encode KV events: no event %T", event)
		}
	}
	e.buf = nil
	e.enc.ResetBytes(&e.buf)
	if err := e.enc.Encode(&out); err != nil {
		return nil, fmt.Errorf("encode KV events: %w", err)
	}
	return e.buf, nil
}

func (s *BlockStored) wire() *wireStored {
	w := &wireStored{
		Type: kindStored, Hashes: wireHashes(s.Hashes), TokenIDs: s.TokenIDs, BlockSize: s.BlockSize,
		LoraID: s.LoraID, Medium: optional(s.Medium), LoraName: optional(s.LoraName), Group: s.Group, SpecKind: optional(s.SpecKind),
	}
	if s.Parent != nil {
		w.Parent = uint64(*s.Parent)
	}
	if w.TokenIDs == nil {
		w.TokenIDs = []uint32{} // a list, not nil
	}
	if s.Window != 0 {
		w.Window = &s.Window
	}
	if s.HasExtraKeys {
		w.ExtraKeys = s.ExtraKeys
	}
	return w
}

func wireHashes(hashes []Hash) []any {
	out := make([]any, len(hashes))
	for i, h := range hashes {
		out[i] = uint64(h)
	}
	return out
}

// optional is nil for an empty text.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
