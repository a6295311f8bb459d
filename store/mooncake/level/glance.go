package level

import (
	"encoding/binary"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Glance is one lookup's sight of what is known.
type Glance struct {
	level  *Level
	space  *space
	nowMS  int64
	byTold bool // it has said something that only events have told
}

// Glance begins a lookup. Of a cluster that is not in service, or not used for the
// namespace, nothing is there.
func (l *Level) Glance(digest [32]byte) *Glance {
	g := &Glance{level: l, nowMS: l.nowMS()}
	if l.inService() {
		g.space = l.spaceOf(digest)
	}
	return g
}

// Exists implements embedded.Glance.
func (g *Glance) Exists(group uint32, hash *kv.Hash) kv.Existence {
	if g.space == nil {
		return kv.Absent
	}
	return g.exists(g.space.digest(group, hash))
}

// aheadChunks is how many chunks' memory is fetched at a time.
const aheadChunks = 16

// Ahead implements embedded.Glance. The memory of some chunks is looked at before any of
// them is looked for, so that the waits for it overlap.
func (g *Glance) Ahead(group uint32, hashes kv.HashBlob, from int, answers []kv.Existence) {
	length := hashes.HashLen()
	if g.space == nil || length == 0 {
		clear(answers) // kv.Absent
		return
	}
	scope, data := g.space.scope(group), hashes.Bytes()[from*length:]
	var digests [aheadChunks]uint64
	for len(answers) > 0 {
		n := min(len(answers), aheadChunks)
		for i := range n {
			if length < 16 {
				padded := hashes.At(from + i)
				digests[i] = g.space.digest(group, &padded)
				continue
			}
			digests[i] = digestOf(scope, binary.LittleEndian.Uint64(data[i*length:]), binary.LittleEndian.Uint64(data[i*length+8:]))
		}
		g.level.known.fetch(digests[:n])
		for i := range n {
			answers[i] = g.exists(digests[i])
		}
		answers, data, from = answers[n:], data[n*length:], from+n
	}
}

// exists tells what is known of a chunk.
func (g *Glance) exists(digest uint64) kv.Existence {
	said, ok := g.level.known.find(digest, g.nowMS)
	switch {
	case !ok:
		return g.told(digest)
	case said.there():
		return kv.Present
	}
	return kv.Absent
}

// told answers by what events have told: nobody has told of what is not known.
func (g *Glance) told(digest uint64) kv.Existence {
	if g.level.told == nil {
		return kv.Unknown
	}
	if said, _ := g.level.told.find(digest, g.nowMS); said != present {
		return kv.Unknown
	}
	if !g.byTold {
		g.byTold = true
		g.level.events.lookups.Add(1)
	}
	return kv.Present
}
