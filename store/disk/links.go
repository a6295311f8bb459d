package disk

import "fmt"

// Link is a chunk on the disk as a part of its chain, within a namespace. Hash and
// Parent are the first words of the chunk's hash and of its predecessor's; Parent
// is 0 for none.
type Link struct {
	Group        uint16
	Hash, Parent uint64

	key [2]uint64
}

// LinkOf is a chunk that the disk may have, of which the predecessor does not
// matter.
func LinkOf(key *Key) Link {
	return Link{Group: key.Group, Hash: le.Uint64(key.Hash[:8]), key: keyOf(key)}
}

// Links lists the chunks of a namespace. ErrUncertain: they are not all known yet.
func (t *Tier) Links(namespace [32]byte) ([]Link, error) {
	var links []Link
	for from, more := uint32(0), true; more; from += sweepStride {
		var err error
		if links, more, err = t.someLinks(links, &namespace, from); err != nil {
			return nil, err
		}
	}
	return links, nil
}

func (t *Tier) someLinks(links []Link, namespace *[32]byte, from uint32) ([]Link, bool, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.phase != serving {
		return nil, false, fmt.Errorf("%w: the disk tier is %v and does not know yet what it has; ask again", ErrUncertain, t.phase)
	}
	space, known := t.spaces.ids[*namespace]
	if !known {
		return links, false, nil
	}
	to := min(from+sweepStride, t.catalog.fresh)
	for id := from; id < to; id++ {
		e := &t.catalog.entries[id]
		if e.removed || e.space != space {
			continue
		}
		l := Link{Group: e.group, Hash: e.key[0] ^ scopeOf(namespace, e.group), key: e.key}
		if e.parent != 0 {
			l.Parent = e.parent ^ scopeOf(namespace, e.group)
		}
		links = append(links, l)
	}
	return links, to < t.catalog.fresh, nil
}

// ForgetLinks forgets chunks as ForgetWithTag does.
func (t *Tier) ForgetLinks(tag *string, links []Link) (chunks int) {
	keys := make([][2]uint64, len(links))
	for i := range links {
		keys[i] = links[i].key
	}
	return t.forget(tag, keys)
}
