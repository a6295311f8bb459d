package coordinator

import (
	"fmt"
	"strings"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Explanation says why a lookup's hit is as long as it is.
type Explanation struct {
	Lookup
	// NumTokens is the request's length, Length the part of it that a hit could
	// cover.
	NumTokens, Length int
	// Groups are the store groups in order.
	Groups []GroupExplanation
}

// GroupExplanation is one group's part in it.
type GroupExplanation struct {
	Group                     int
	Kind                      kv.SpecKind
	BlockTokens, WindowTokens int
	// Alone is the hit if every group of another spec had everything.
	Alone int
	// Limits: no group alone allows less.
	Limits bool
	// Stored and Asked count the group's chunks that are present and that can
	// take part in a hit.
	Stored, Asked int
	// FirstMissing is the first chunk that can take part and is not present,
	// from the group's own hit on where one is missing there; -1 for none.
	FirstMissing int
	// Missing is the answer about it.
	Missing kv.Existence
	// Reason is a sentence for an operator.
	Reason string
}

// Explain repeats a lookup and looks at each group by itself. It costs a lookup
// a group.
func (c *Coordinator) Explain(numTokens, numHashes int, exists ExistsFunc) (Explanation, error) {
	lookup, err := c.Lookup(numTokens, numHashes, exists)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Lookup: lookup, NumTokens: numTokens, Length: c.usable(numTokens, numHashes)}
	masks := c.reach(e.Length, 0, RetentionDense, NoPrefill)
	least := e.Length
	for i := range c.groups {
		alone := c.answer(nil, numTokens, numHashes, func(group, hashIndex int) kv.Existence {
			if c.groups[group].merged != c.groups[i].merged {
				return kv.Present
			}
			return exists(group, hashIndex)
		})
		spec := c.cfg.Groups[i]
		g := GroupExplanation{Group: i, Kind: spec.Kind, BlockTokens: spec.BlockTokens, WindowTokens: spec.WindowTokens,
			Alone: alone.HitTokens, FirstMissing: -1}
		for chunk := masks[i].First; chunk < masks[i].End(); chunk++ {
			if !masks[i].Has(chunk) {
				continue
			}
			g.Asked++
			if answer := exists(i, c.HashIndex(i, chunk)); answer == kv.Present {
				g.Stored++
			} else if g.FirstMissing < 0 || g.FirstMissing < g.Alone/spec.BlockTokens && chunk >= g.Alone/spec.BlockTokens {
				g.FirstMissing, g.Missing = chunk, answer
			}
		}
		least = min(least, g.Alone)
		e.Groups = append(e.Groups, g)
	}
	for i := range e.Groups {
		g := &e.Groups[i]
		g.Limits = g.Alone == least && least < e.Length
		g.Reason = c.reason(g, e.Length)
	}
	return e, nil
}

// usable returns the longest hit that a request can have.
func (c *Coordinator) usable(numTokens, numHashes int) int {
	return c.AlignLookupLength(min(numTokens-1, numHashes*c.cfg.HashBlockTokens))
}

// reason says what ends a group's own hit.
func (c *Coordinator) reason(g *GroupExplanation, length int) string {
	eagle := ""
	if m := &c.merged[c.groups[g.Group].merged]; m.eagle && m.rule != ruleMamba {
		eagle = "; the drafter recomputes the last unit"
	}
	switch {
	case length == 0:
		return "the request is shorter than one unit that can be reused"
	case g.Alone >= length:
		return "everything that can be reused is stored"
	case g.FirstMissing < 0 && eagle != "":
		return "everything is stored" + eagle
	case g.FirstMissing < 0:
		return fmt.Sprintf("everything is stored, but no hit ends between %d and %d tokens", g.Alone, length)
	}
	missing := fmt.Sprintf("chunk %d (tokens %d to %d) is %s", g.FirstMissing, g.FirstMissing*g.BlockTokens, (g.FirstMissing+1)*g.BlockTokens, g.Missing)
	switch c.groups[g.Group].rule {
	case ruleFull:
		return missing + " and ends the leading run" + eagle
	case ruleWindow:
		return fmt.Sprintf("no whole window of %d tokens is stored before a boundary beyond %d tokens; %s%s", g.WindowTokens, g.Alone, missing, eagle)
	case ruleChunked:
		return fmt.Sprintf("within the attention chunk of %d tokens that the hit ends in, %s", g.WindowTokens, missing)
	}
	return fmt.Sprintf("no state is stored beyond %d tokens", g.Alone)
}

// String returns one line for the request and one a group.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "hit %d of %d tokens (at most %d can be reused)", e.HitTokens, e.NumTokens, e.Length)
	if e.Pending {
		b.WriteString(", some answers are pending")
	}
	for _, g := range e.Groups {
		mark := " "
		if g.Limits {
			mark = "*"
		}
		fmt.Fprintf(&b, "\n%s group %d %s, block %d", mark, g.Group, g.Kind, g.BlockTokens)
		if g.WindowTokens > 0 {
			fmt.Fprintf(&b, ", window %d", g.WindowTokens)
		}
		fmt.Fprintf(&b, ": %d tokens by itself, %d of %d chunks stored: %s", g.Alone, g.Stored, g.Asked, g.Reason)
	}
	return b.String()
}
