package prefixindex

import (
	"cmp"
	"slices"
)

// windowRun is one group of a rank of which a prefix needs the last blocks, in the rank
// itself or in the store that it shares.
type windowRun struct {
	group int
	// own and stores are the lanes, noLane for none.
	own    uint32
	stores []uint32
	need   int // blocks
	// runs is, by the tiers that are looked in, how many of the latest blocks are held.
	runs [1 << tiers]int
}

const noLane = 1<<32 - 1

// addWindows notes the windows of a row.
func (w *walk) addWindows(s *space, r *row) {
	r.firstWindow = len(w.windows)
	for _, l := range s.slots[r.slot].windows {
		w.windows = append(w.windows, windowRun{group: s.lanes[l].group, own: l, need: w.needOf(&s.lanes[l])})
	}
	for _, store := range r.stores {
		for _, l := range s.slots[store].windows {
			w.addStoreWindow(r, l, &s.lanes[l])
		}
	}
	r.lastWindow = len(w.windows)
}

func (w *walk) addStoreWindow(r *row, l uint32, ln *lane) {
	for i := r.firstWindow; i < len(w.windows); i++ {
		if run := &w.windows[i]; run.group == ln.group {
			run.stores, run.need = append(run.stores, l), max(run.need, w.needOf(ln))
			return
		}
	}
	w.windows = append(w.windows, windowRun{group: ln.group, own: noLane, stores: []uint32{l}, need: w.needOf(ln)})
}

// needOf returns how many of a prefix's last blocks a window needs.
func (w *walk) needOf(ln *lane) int {
	return (ln.windowTokens - 2 + w.q.BlockTokens) / w.q.BlockTokens
}

// countWindows counts how many of the latest blocks a row's windows hold.
func (w *walk) countWindows(s *space, r *row) {
	for i := r.firstWindow; i < r.lastWindow; i++ {
		run := &w.windows[i]
		has := w.heldIn(s, run.own)
		for _, l := range run.stores {
			has |= w.heldIn(s, l) & notGPU
		}
		for where := range run.runs {
			if has&tierSet(where) != 0 { //nolint:gosec // eight
				run.runs[where] += w.run
			} else {
				run.runs[where] = 0
			}
		}
	}
}

// heldIn returns where a lane holds the blocks at hand.
func (w *walk) heldIn(s *space, l uint32) (has tierSet) {
	if l == noLane || s.lanes[l].retired {
		return 0
	}
	i, _ := slices.BinarySearchFunc(w.same, holdingOf(l, 0), cmp.Compare[holding])
	for ; i < len(w.same) && w.same[i].lane() == l; i++ {
		has |= 1 << w.same[i].tier()
	}
	return has
}

// windowsAllow tells whether a row's windows hold, in some tiers, what they need where
// the blocks that were visited end.
func (w *walk) windowsAllow(r *row, where tierSet) bool {
	for i := r.firstWindow; i < r.lastWindow; i++ {
		if run := &w.windows[i]; run.runs[where] < min(run.need, w.blocks) {
			return false
		}
	}
	return true
}
