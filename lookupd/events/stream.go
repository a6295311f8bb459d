package events

import (
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// maxBatchHashes and maxBatchEvents bound a batch, and so its bytes: libzmq counts
// messages when it bounds what waits for somebody who does not read.
const (
	maxBatchHashes = 512
	maxBatchEvents = 32
)

// stream is what is published of a namespace.
type stream struct {
	spec  *kv.NamespaceSpec
	topic string
	next  uint64 // number of the next batch

	pending []kvevents.Event
	// announced: the end of an announcement is to be published behind pending.
	announced bool
}

// clear adds that nothing is there.
func (s *stream) clear() { s.pending = append(s.pending, &kvevents.AllBlocksCleared{}) }

// add adds what happened to a chunk, to the latest event if that is of its kind.
func (s *stream) add(kind Kind, medium string, group uint32, hash *kv.Hash) {
	if int(group) >= len(s.spec.Groups) {
		return // of a spec that has the same digest by a damaged record
	}
	h := kvevents.HashOf(hash[:s.spec.HashBytes])
	var last kvevents.Event
	if n := len(s.pending); n > 0 {
		last = s.pending[n-1]
	}
	g := int(group)
	if kind == Removed {
		if e, ok := last.(*kvevents.BlockRemoved); ok && e.Medium == medium && *e.Group == g && len(e.Hashes) < maxBatchHashes {
			e.Hashes = append(e.Hashes, h)
			return
		}
		s.pending = append(s.pending, &kvevents.BlockRemoved{Hashes: []kvevents.Hash{h}, Medium: medium, Group: &g})
		return
	}
	if e, ok := last.(*kvevents.BlockStored); ok && e.Medium == medium && *e.Group == g && len(e.Hashes) < maxBatchHashes {
		e.Hashes = append(e.Hashes, h)
		return
	}
	spec := &s.spec.Groups[group]
	s.pending = append(s.pending, &kvevents.BlockStored{
		Hashes: []kvevents.Hash{h}, Medium: medium, Group: &g, SpecKind: specKind(spec.Kind), Window: spec.WindowTokens,
	})
}

// specKind is a kind in vLLM's words for its events, where they differ from ours.
func specKind(kind kv.SpecKind) string {
	switch name := string(kind); name {
	case "mamba_align":
		return "mamba"
	case "hidden_state", "rswa":
		return "unknown"
	default:
		return name
	}
}

// batches takes what is pending, in batches.
func (s *stream) batches() [][]kvevents.Event {
	if len(s.pending) == 0 {
		return nil
	}
	var all [][]kvevents.Event
	first, hashes := 0, 0
	for i, e := range s.pending {
		n := hashesOf(e)
		if i-first == maxBatchEvents || hashes+n > maxBatchHashes {
			all = append(all, s.pending[first:i])
			first, hashes = i, 0
		}
		hashes += n
	}
	all = append(all, s.pending[first:])
	s.pending = nil
	return all
}

func hashesOf(e kvevents.Event) int {
	switch e := e.(type) {
	case *kvevents.BlockStored:
		return len(e.Hashes)
	case *kvevents.BlockRemoved:
		return len(e.Hashes)
	}
	return 0
}
