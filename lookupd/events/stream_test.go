package events

import (
	"encoding/binary"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// maxBatchBytes is what 10,000 batches may have each, that wait for somebody who does
// not read.
const maxBatchBytes = 16 << 10

// Batches are small whatever is told, and have all of it in its order.
func TestBatchesAreSmall(t *testing.T) {
	spec := &kv.NamespaceSpec{HashBytes: 32, Groups: []kv.GroupSpec{
		{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 1 << 30}, {Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 1 << 30},
	}}
	for name, test := range map[string]struct {
		chunks, alternate int
	}{"announcement": {100_000, 1 << 30}, "of two groups": {3000, 1}, "pieces": {10_000, 100}} {
		s := &stream{spec: spec}
		s.clear()
		for i := range test.chunks {
			var hash kv.Hash
			binary.BigEndian.PutUint64(hash[24:], 1<<63|uint64(i))
			s.add(Stored, kvevents.MediumStorage, uint32(i/test.alternate%2), &hash)
		}
		next, encoder := uint64(0), kvevents.NewEncoder()
		for i, events := range s.batches() {
			payload, err := encoder.Encode(&kvevents.Batch{Time: 1.5, Events: events})
			if err != nil || len(payload) > maxBatchBytes {
				t.Fatalf("%s: batch %d has %d bytes, %v", name, i, len(payload), err)
			}
			for _, e := range events {
				if e, ok := e.(*kvevents.BlockStored); ok {
					for _, h := range e.Hashes {
						if uint64(h) != 1<<63|next {
							t.Fatalf("%s: hash %x, want %x", name, h, 1<<63|next)
						}
						next++
					}
				}
			}
		}
		if next != uint64(test.chunks) || s.batches() != nil {
			t.Errorf("%s: %d of %d hashes", name, next, test.chunks)
		}
	}
}
