package coordinator

import "fmt"

// NoPrefill is the prefillEnd of a store whose prefill length is not known.
const NoPrefill = -1

// LoadMask returns, by group, which chunks a load of tokenLen tokens fills:
// the window of a sliding-window group, the one state of a Mamba group. tokenLen
// is a lookup's hit length.
func (c *Coordinator) LoadMask(tokenLen int) ([]Mask, error) {
	_, masks, err := c.Find(tokenLen/c.cfg.HashBlockTokens, tokenLen, false, nil)
	return masks, err
}

// StoreMask returns, by group, which chunks behind startTokens and up to
// tokenLen are worth storing. prefillEnd is the length of the request's current
// prefill, or NoPrefill; a later request resumes at the boundaries below it.
//
// Mamba groups have none: an align-mode block table is no append-only list, so
// that a state is only ever stored from an explicit hand-off.
func (c *Coordinator) StoreMask(tokenLen, startTokens, prefillEnd int) ([]Mask, error) {
	retention := c.cfg.RetentionTokens
	if c.cfg.StoreRetention != RetentionAsEngine {
		retention = c.cfg.StoreRetention
	}
	masks, err := c.reachable(tokenLen, startTokens, retention, prefillEnd)
	if err != nil {
		return nil, err
	}
	for g := range masks {
		if c.groups[g].rule == ruleMamba {
			masks[g] = Mask{First: masks[g].First, N: masks[g].N, kind: maskNone}
		}
	}
	return masks, nil
}

// LookupMask returns, by group, which chunks below tokenLen can take part in an
// aligned hit. The others need not be asked for.
func (c *Coordinator) LookupMask(tokenLen int) ([]Mask, error) {
	return c.reachable(tokenLen, 0, RetentionDense, NoPrefill)
}

func (c *Coordinator) reachable(tokenLen, startTokens, retention, prefillEnd int) ([]Mask, error) {
	if tokenLen < 0 || tokenLen%c.align != 0 {
		return nil, fmt.Errorf("%w: a mask over %d tokens, want a multiple of %d", ErrArgument, tokenLen, c.align)
	}
	return c.reach(tokenLen, startTokens, retention, prefillEnd), nil
}

// reach is reachable of an aligned length.
func (c *Coordinator) reach(tokenLen, startTokens, retention, prefillEnd int) []Mask {
	boundaries, n := c.replayBoundaries(prefillEnd)
	masks := make([]Mask, len(c.groups))
	for i := range masks {
		g := &c.groups[i]
		end := tokenLen / g.block
		first := min(end, max(0, ceilDiv(startTokens, g.block)))
		masks[i] = Mask{First: first, N: end - first}
		if g.rule == ruleWindow {
			c.windowMask(&masks[i], g, retention, boundaries[:n])
		}
	}
	return masks
}

// windowMask keeps the windows that a hit can end with: one before every
// retained boundary and one before each replay boundary.
func (c *Coordinator) windowMask(m *Mask, g *group, retention int, boundaries []int) {
	l := c.cfg.SchedulerBlockTokens
	eagle := c.merged[g.merged].eagle
	need := contiguous(g.window, g.block, eagle)
	shift := 0
	if eagle {
		shift = 1
	}
	segment := retention
	if retention == RetentionDense {
		segment = l
	}
	if segment > 0 {
		period := segment / g.block
		if need >= period {
			return
		}
		m.shift, m.period, m.keep = shift, period, need
	}
	m.kind = maskPeriodic
	if retention == RetentionDense {
		return
	}
	for i, t := range boundaries {
		end := t/l*l/g.block + shift
		m.windows[i] = [2]int{end - need, end}
	}
}

// replayBoundaries returns the lengths at which a request can resume that
// replays this one: the same prompt is resumed before its last token, a longer
// one at the last block. They fall together unless the drafter drops a block.
func (c *Coordinator) replayBoundaries(prefillEnd int) (boundaries [2]int, n int) {
	l := c.cfg.SchedulerBlockTokens
	switch {
	case prefillEnd < 0:
		return boundaries, 0
	case !c.eagle && prefillEnd == 0:
		return boundaries, 0 // the boundary lies before the first token
	case !c.eagle:
		return [2]int{prefillEnd - 1}, 1
	case prefillEnd == 0:
		return boundaries, 1
	}
	return [2]int{max((prefillEnd-1)/l*l-l, 0), max(prefillEnd/l*l-l, 0)}, 2
}
