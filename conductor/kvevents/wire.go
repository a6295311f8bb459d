package kvevents

import "github.com/ugorji/go/codec"

// The structs below are the events as they are written: maps, with vLLM's names in
// vLLM's order. It leaves fields with a default out of its maps, those that may be
// nil last.

type wireStored struct {
	Type      string    `codec:"type"`
	Hashes    []any     `codec:"block_hashes"`
	Parent    any       `codec:"parent_block_hash"`
	TokenIDs  []uint32  `codec:"token_ids"`
	BlockSize int       `codec:"block_size"`
	LoraID    *int64    `codec:"lora_id"`
	Medium    *string   `codec:"medium"`
	LoraName  *string   `codec:"lora_name"`
	ExtraKeys codec.Raw `codec:"extra_keys,omitempty"`
	Group     *int      `codec:"group_idx,omitempty"`
	SpecKind  *string   `codec:"kv_cache_spec_kind,omitempty"`
	Window    *int      `codec:"kv_cache_spec_sliding_window,omitempty"`
}

type wireRemoved struct {
	Type   string  `codec:"type"`
	Hashes []any   `codec:"block_hashes"`
	Medium *string `codec:"medium"`
	Group  *int    `codec:"group_idx,omitempty"`
}

type wireCleared struct {
	Type string `codec:"type"`
}

// outBatch is a batch.
type outBatch struct {
	_struct bool    `codec:",toarray"` //nolint:unused // codec looks for it
	Time    float64 //
	Events  []any   //
	Rank    *int    //
}

// handle makes the codec's settings.
func handle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.WriteExt = true // bin for bytes, str for text
	h.Raw = true      // extra keys are passed on as they came
	h.PositiveIntUnsigned = true
	return h
}
