package coordcases

import (
	"strconv"

	"github.com/mooncake-sidecar/sidecar/coordinator"
)

// Answer is the coordinator's answer to a case.
type Answer struct {
	Op    string
	Hit   int
	Masks []coordinator.Mask
	Tails []coordinator.TailKeyBoundary
}

// AppendJSON appends the answer as one JSON object without spaces.
func (a *Answer) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	if a.Op == OpFind || a.Op == OpLookup {
		dst = append(dst, `"hit":`...)
		dst = strconv.AppendInt(dst, int64(a.Hit), 10)
		dst = append(dst, ',')
	}
	if a.Op == OpLookup {
		dst = append(dst, `"tails":[`...)
		for i, t := range a.Tails {
			dst = separate(dst, i)
			dst = append(dst, '[')
			dst = strconv.AppendInt(dst, int64(t.Group), 10)
			dst = append(dst, ',')
			dst = strconv.AppendInt(dst, int64(t.Tokens), 10)
			dst = append(dst, ']')
		}
		return append(dst, "]}"...)
	}
	dst = append(dst, `"masks":[`...)
	for i, m := range a.Masks {
		dst = separate(dst, i)
		switch {
		case a.Op == OpFind:
			dst = appendBits(dst, m, 0, "1", "0")
		case m.All():
			dst = append(dst, "null"...)
		default:
			dst = appendBits(dst, m, m.First, "true", "false")
		}
	}
	return append(dst, "]}"...)
}

func appendBits(dst []byte, m coordinator.Mask, first int, yes, no string) []byte {
	dst = append(dst, '[')
	for i := first; i < m.End(); i++ {
		dst = separate(dst, i-first)
		if m.Has(i) {
			dst = append(dst, yes...)
		} else {
			dst = append(dst, no...)
		}
	}
	return append(dst, ']')
}

func separate(dst []byte, i int) []byte {
	if i > 0 {
		dst = append(dst, ',')
	}
	return dst
}
