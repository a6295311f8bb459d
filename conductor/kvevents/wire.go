package kvevents

import "github.com/ugorji/go/codec"

// The structs below are the events on the wire: the fields in the order in which
// old publishers write them as arrays, the names as new ones write them as maps.
// The first is the class name in both. vLLM leaves fields with a default out of its
// maps, those that may be nil last.

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

// wireTag reads the class name and nothing else.
type wireTag struct {
	Type string `codec:"type"`
}

// wireBatch has its events undecoded: their names say how to read them.
type wireBatch struct {
	_struct bool        `codec:",toarray"` //nolint:unused // codec looks for it
	Time    float64     //
	Events  []codec.Raw //
	Rank    *int        //
}

// outBatch is wireBatch for writing.
type outBatch struct {
	_struct bool    `codec:",toarray"` //nolint:unused // codec looks for it
	Time    float64 //
	Events  []any   //
	Rank    *int    //
}

// maxDepth bounds how deep values are nested: extra keys are lists of tuples.
const maxDepth = 16

// handle makes the codec's settings. They are fixed, and safe to share once used.
func handle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.WriteExt = true    // bin for bytes, str for text
	h.RawToString = true // old publishers may write names in either
	h.Raw = true
	h.MaxDepth = maxDepth
	h.MaxInitLen = 1 << 10 // memory follows what is there, not what is announced
	h.ZeroCopy = true
	h.PositiveIntUnsigned = true
	h.ErrorIfNoArrayExpand = false
	return h
}
