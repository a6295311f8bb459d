package connector

import (
	"errors"
	"strings"
	"testing"
)

// What a GPU's registration has beside is bounded, and handles are of whole numbers.
func TestRegistrationsOfGPUs(t *testing.T) {
	register := messages()[3]
	regions := func(r KVRegion) map[string]any {
		r.Kind, r.Bytes = "cuda_fabric", 1<<20
		return map[string]any{"regions": []KVRegion{r}}
	}
	for name, c := range map[string]struct {
		change map[string]any
		text   string // of the refusal; empty: there is none
	}{
		"a GPU's name":           {map[string]any{"device_uuid": make([]byte, UUIDBytes)}, ""},
		"half of one":            {map[string]any{"device_uuid": make([]byte, UUIDBytes/2)}, "device_uuid has 8 bytes"},
		"events":                 {map[string]any{"events": [][]byte{make([]byte, HandleBytes)}}, ""},
		"an event cut":           {map[string]any{"events": [][]byte{make([]byte, HandleBytes-1)}}, "the handle of event 0 has 63 bytes"},
		"too many events":        {map[string]any{"events": make([][]byte, maxEvents+1)}, "events, at most"},
		"an allocation's handle": {regions(KVRegion{Handle: make([]byte, HandleBytes)}), ""},
		"one cut":                {regions(KVRegion{Handle: make([]byte, HandleBytes-1)}), "the handle of region 0 has 63 bytes"},
		"a handle each chunk":    {regions(KVRegion{Handle: make([]byte, 2*HandleBytes), Chunks: []uint64{1, 1}}), ""},
		"chunks alone":           {regions(KVRegion{Chunks: []uint64{1, 1}}), ""},
		"one handle for two":     {regions(KVRegion{Handle: make([]byte, HandleBytes), Chunks: []uint64{1, 1}}), "64 for each chunk"},
		"handles for no chunk":   {regions(KVRegion{Handle: make([]byte, 2*HandleBytes)}), "64 for each chunk"},
		"too many chunks":        {regions(KVRegion{Chunks: make([]uint64, MaxFDs+1)}), "chunks, at most"},
	} {
		_, err := Decode(edit(t, register, c.change))
		var bad *MalformedError
		switch {
		case c.text == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.text != "" && (!errors.As(err, &bad) || !strings.Contains(err.Error(), c.text)):
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}
