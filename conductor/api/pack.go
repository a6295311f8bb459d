package api

import (
	"encoding/binary"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// appendMsgpackAnswer appends an answer in the shape of Mooncake Conductor's msgpack
// calls. gpu, cpu and disk are what is had by going through the tiers so far, not what
// one of them holds; an instance of another model is left out, and so is a store.
func appendMsgpackAnswer(dst []byte, matches []contract.RankMatch) []byte {
	n := 0
	instances(matches, func(ranks []contract.RankMatch) {
		if isRow(ranks) {
			n++
		}
	})
	dst = appendText(appendHead(dst, kindMap, 1), "instances")
	dst = appendHead(dst, kindMap, n)
	instances(matches, func(ranks []contract.RankMatch) {
		if isRow(ranks) {
			dst = appendMsgpackInstance(appendText(dst, ranks[0].Instance), ranks)
		}
	})
	return dst
}

func isRow(ranks []contract.RankMatch) bool {
	for i := range ranks {
		if ranks[i].Rank != prefixindex.Shared && !ranks[i].Foreign {
			return true
		}
	}
	return false
}

func appendMsgpackInstance(dst []byte, ranks []contract.RankMatch) []byte {
	for ranks[0].Rank == prefixindex.Shared {
		ranks = ranks[1:] // ranks are in order, and it is the first; there is another, or it were no row
	}
	t := totalOf(ranks)
	dst = appendHead(dst, kindMap, 8)
	dst = appendNumber(dst, "longest_matched", t.through[prefixindex.Disk])
	dst = appendHead(appendText(dst, "dp"), kindMap, len(ranks))
	for i := range ranks {
		dst = appendNumber(dst, rankName(ranks[i].Rank), ranks[i].Through[prefixindex.GPU])
	}
	dst = appendTiers(dst, &t.through)
	dst = appendHead(appendText(dst, "rank_matches"), kindMap, len(ranks))
	for i := range ranks {
		dst = appendHead(appendText(dst, rankName(ranks[i].Rank)), kindMap, 3)
		dst = appendTiers(dst, &ranks[i].Through)
	}
	dst = append(appendText(dst, "complete"), boolOf(t.state == contract.Complete && !t.truncated))
	return appendText(appendText(dst, "state"), t.state.String())
}

func appendTiers(dst []byte, through *[3]int) []byte {
	dst = appendNumber(dst, "gpu", through[prefixindex.GPU])
	dst = appendNumber(dst, "cpu", through[prefixindex.CPU])
	return appendNumber(dst, "disk", through[prefixindex.Disk])
}

func boolOf(b bool) byte {
	if b {
		return 0xc3
	}
	return 0xc2
}

// appendHead appends the head of a map or a text.
func appendHead(dst []byte, kind byte, n int) []byte {
	switch {
	case kind == kindMap && n <= 15:
		return append(dst, 0x80|byte(n))
	case kind == kindMap && n <= 1<<16-1:
		return binary.BigEndian.AppendUint16(append(dst, 0xde), uint16(n)) //nolint:gosec // checked
	case kind == kindMap:
		return binary.BigEndian.AppendUint32(append(dst, 0xdf), uint32(n)) //nolint:gosec // as many as there are in memory
	case n <= 31:
		return append(dst, 0xa0|byte(n))
	case n <= 1<<8-1:
		return append(dst, 0xd9, byte(n))
	case n <= 1<<16-1:
		return binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n)) //nolint:gosec // checked
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n)) //nolint:gosec // as long as what is in memory
}

func appendText(dst []byte, text string) []byte {
	return append(appendHead(dst, kindText, len(text)), text...)
}

// appendNumber appends a field with a number, which is not negative.
func appendNumber(dst []byte, name string, n int) []byte {
	dst = appendText(dst, name)
	switch {
	case n <= 0x7f:
		return append(dst, byte(n))
	case n <= 1<<16-1:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(n)) //nolint:gosec // checked
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), uint64(n)) //nolint:gosec // never negative
}
