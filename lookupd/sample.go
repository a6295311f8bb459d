package lookupd

import (
	"encoding/binary"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/missratio"
)

// Sampler is shown the chunks of every lookup, as a missratio.Tap is. It must
// cost next to nothing, wait for nobody and keep nothing of hashes.
type Sampler interface {
	Lookup(scope missratio.Scope, hashes []byte, stride int)
}

// sampling shows the lookups of one engine to the sampler. Chunks are those of
// the first group, with the memory that all groups take for as many tokens.
type sampling struct {
	sampler       Sampler // nil: nothing is shown
	scope         missratio.Scope
	first, stride int // bytes: where a chunk's own hash begins, and how far the next one's is
}

func newSampling(sampler Sampler, spec *kv.NamespaceSpec) sampling {
	if sampler == nil || len(spec.Groups) == 0 || spec.HashBlockTokens <= 0 || spec.Groups[0].BlockTokens < spec.HashBlockTokens {
		return sampling{}
	}
	digest := spec.Digest()
	s := sampling{sampler: sampler, scope: missratio.Scope{Salt: binary.LittleEndian.Uint64(digest[:])}}
	tokens := spec.Groups[0].BlockTokens
	for _, g := range spec.Groups {
		s.scope.ChunkBytes += uint64(g.ShardBytes) * uint64(g.Shards) * uint64(tokens) / uint64(max(g.BlockTokens, 1))
	}
	hashes := tokens / spec.HashBlockTokens // of a chunk, the last of which is its own
	s.first, s.stride = (hashes-1)*spec.HashBytes, hashes*spec.HashBytes
	return s
}

// note shows a lookup.
func (s *sampling) note(hashes kv.HashBlob) {
	if data := hashes.Bytes(); s.sampler != nil && len(data) > s.first {
		// From the first chunk's own hash on: what is left over is no whole stride.
		s.sampler.Lookup(s.scope, data[s.first:], s.stride)
	}
}

// known tells whether of a chain's hashes those are known that would be shown.
func (s *sampling) known(c *chain) bool {
	return s.sampler == nil || c.shows(s.first, s.stride)
}
