package router

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

// history remembers where prompts were sent, by their prefixes. It speaks for what the
// index does not know yet: a prompt that is still computed, and engines that tell no
// events. Its memory is fixed; the oldest is forgotten first. It is not safe for
// concurrent use.
type history struct {
	seed uint64
	// places of a prefix of a multiple of historyTokens, by its hash.
	places map[uint64]*placesOf
	// ring has the hashes in the order in which they were noted.
	ring []uint64
	next int
}

// placesOf are the latest engines that were sent a prefix.
type placesOf [4]struct {
	to    fleet.Target
	until time.Time // zero: none
}

const (
	// historyTokens is how fine prefixes are told apart.
	historyTokens = 128
	// maxHistory prefixes are remembered.
	maxHistory = 1 << 16
	// historyKeeps is for how long, where there is no index: about what engines keep.
	historyKeeps = 10 * time.Minute
)

func newHistory(seed uint64) *history {
	return &history{seed: seed, places: map[uint64]*placesOf{}, ring: make([]uint64, maxHistory)}
}

// prefixHashes are those of a prompt's prefixes. salt is all besides tokens in which
// prompts differ.
func prefixHashes(seed uint64, salt string, tokens []byte, dst []uint64) []uint64 {
	const part = historyTokens * tokenBytes
	before := xxh3.HashStringSeed(salt, seed)
	for ; len(tokens) >= part; tokens = tokens[part:] {
		var link [8]byte
		binary.LittleEndian.PutUint64(link[:], before)
		before = xxh3.HashSeed(tokens[:part], xxh3.HashSeed(link[:], seed))
		dst = append(dst, before)
	}
	return dst
}

// sent notes that a prompt was sent somewhere.
func (h *history) sent(hashes []uint64, to fleet.Target, now time.Time) {
	until := now.Add(historyKeeps)
	for _, hash := range hashes {
		p := h.places[hash]
		if p == nil {
			delete(h.places, h.ring[h.next])
			h.ring[h.next] = hash
			h.next = (h.next + 1) % len(h.ring)
			p = &placesOf{}
			h.places[hash] = p
		}
		at := 0
		for i := range p {
			if p[i].to == to && !p[i].until.IsZero() {
				at = i
				break
			}
			if p[i].until.Before(p[at].until) {
				at = i
			}
		}
		if p[at].to != to || p[at].until.Before(until) {
			p[at].to, p[at].until = to, until
		}
	}
}

// sentTo is how many of a prompt's tokens an engine was sent before.
type sentTo struct {
	to     fleet.Target
	tokens int
	// since is when the oldest part of it was sent.
	since time.Time
}

// matches returns who was sent how much of a prompt, as far as that counts: few, for
// only the latest engines of a prefix are remembered.
func (h *history) matches(hashes []uint64, now time.Time) []sentTo {
	var found []sentTo
	for n, hash := range hashes {
		p := h.places[hash]
		if p == nil {
			break
		}
		goesOn := false
		for i := range p {
			if !p[i].until.After(now) {
				continue
			}
			at := slices.IndexFunc(found, func(s sentTo) bool { return s.to == p[i].to })
			if at < 0 && n == 0 {
				found = append(found, sentTo{to: p[i].to})
				at = len(found) - 1
			}
			if at >= 0 && found[at].tokens == n*historyTokens {
				found[at].tokens += historyTokens
				if sent := p[i].until.Add(-historyKeeps); n == 0 || sent.Before(found[at].since) {
					found[at].since = sent
				}
				goesOn = true
			}
		}
		if !goesOn {
			break
		}
	}
	return found
}
