package embedded

import (
	"errors"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// tagOf is the salt tag of a chunk, the same whoever stores it: which of two the
// store keeps is its own affair.
func tagOf(chunk int) string {
	if chunk%3 == 0 {
		return "red"
	}
	return ""
}

// remove removes some chunks, in one of the ways that there are.
func (r *tierRun) remove(which int, ns store.Namespace) {
	switch r.rng.IntN(16) {
	case 0, 1:
		tag := "red"
		err := r.removeScope(Scope{SaltTag: &tag})
		r.saw("removed a tag")
		for which := range r.specs {
			r.droppedThose(which, err, func(n int) bool { return tagOf(n) == tag })
		}
	case 2, 3:
		tag := "red"
		err := r.removeScope(Scope{Namespace: &ns.ID, SaltTag: &tag})
		r.droppedThose(which, err, func(n int) bool { return tagOf(n) == tag })
	case 4:
		err := r.removeScope(Scope{Namespace: &ns.ID})
		r.saw("removed a namespace")
		r.droppedThose(which, err, func(int) bool { return true })
	case 5:
		err := r.removeScope(Scope{Everything: true})
		for which := range r.specs {
			r.droppedThose(which, err, func(int) bool { return true })
		}
	case 6, 7, 8, 9, 10:
		r.removeChain(which, ns)
	default:
		first := r.rng.IntN(tierChunks - 10)
		if r.rng.IntN(3) == 0 {
			r.put(which, ns, 12) // some may be on their way down
			first = max(0, min(r.latest, tierChunks-10))
		}
		var hashes []kv.Hash
		for n := first; n < first+10; n++ {
			hashes = append(hashes, testHash(n))
		}
		err := r.removeScope(Scope{Namespace: &ns.ID, Hashes: hashes})
		r.droppedThose(which, err, func(n int) bool { return n >= first && n < first+10 })
	}
	r.saw("removed")
}

func (r *tierRun) removeScope(scope Scope) error {
	_, err := r.w.m.Remove(r.t.Context(), scope)
	if err != nil && !errors.Is(err, disk.ErrUncertain) {
		r.t.Fatal(err)
	}
	r.note("remove %+v: %v", scope, err)
	return err
}

func (r *tierRun) droppedThose(which int, err error, those func(chunk int) bool) {
	for n, c := range r.chunks[which] {
		if those(n) {
			r.dropped(c, err)
		}
	}
}

// removeChain removes a chunk and what stands behind it: at least as far as the
// store has the chain without a gap, for what is behind a gap it can't tell from
// others.
func (r *tierRun) removeChain(which int, ns store.Namespace) {
	first := r.rng.IntN(tierChunks)
	groups, hashes := make([]uint32, tierChunks), make([]kv.Hash, tierChunks)
	for n := range hashes {
		hashes[n] = testHash(n)
	}
	states, err := r.w.m.Inspect(ns.ID, groups, hashes)
	if err != nil {
		r.t.Fatal(err)
	}
	end, below := first+1, 0
	for end < tierChunks && states[end] != ChunkAbsent {
		if states[end] == ChunkOnDisk {
			below++
		}
		end++
	}
	err = r.removeScope(Scope{Namespace: &ns.ID, Hashes: []kv.Hash{testHash(first)}, Chain: true})
	r.saw("removed a chain")
	if below > 0 && err == nil {
		r.saw("removed a chain below")
	}
	r.droppedThose(which, err, func(n int) bool { return n >= first && n < end })
}
