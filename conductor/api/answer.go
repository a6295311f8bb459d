package api

import (
	"encoding/json"
	"strconv"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// total is what one instance holds: the best of its ranks.
type total struct {
	longest int
	in      [3]int // by tier
	through [3]int
	state   contract.State
	// since is that of the incomplete ranks of which least is known.
	since              uint64
	truncated, foreign bool
}

// instances calls visit for the ranks of each instance.
func instances(matches []contract.RankMatch, visit func(ranks []contract.RankMatch)) {
	for begin := 0; begin < len(matches); {
		end := begin + 1
		for end < len(matches) && matches[end].Instance == matches[begin].Instance {
			end++
		}
		visit(matches[begin:end])
		begin = end
	}
}

func totalOf(ranks []contract.RankMatch) total {
	t := total{state: contract.Complete, foreign: true}
	for i := range ranks {
		m := &ranks[i]
		t.longest = max(t.longest, m.Through[prefixindex.Disk])
		for tier := range t.in {
			t.in[tier] = max(t.in[tier], m.In[tier])
			t.through[tier] = max(t.through[tier], m.Through[tier])
		}
		t.state = worse(t.state, m.State)
		if m.State == contract.Incomplete {
			t.since = max(t.since, m.Since)
		}
		t.truncated = t.truncated || m.Truncated
		t.foreign = t.foreign && m.Foreign
	}
	return t
}

// worse is the state of two of which less is known.
func worse(a, b contract.State) contract.State {
	known := [...]int{contract.Connecting: 0, contract.Silent: 1, contract.Incomplete: 2, contract.Complete: 3}
	if known[a] <= known[b] {
		return a
	}
	return b
}

// appendJSONAnswer appends an answer as the contract has it: by tenant, by instance. All
// numbers are tokens.
//
//	longest_matched  what the best rank can use, through all tiers
//	DP               the same of each rank
//	GPU, CPU, DISK   the longest prefix that one rank holds in that tier
//
// What we add says how sure that is, and more of each rank:
//
//	complete     all is known of the instance: no event is missing, nothing was dropped
//	state        connecting, complete, incomplete, silent; of the rank of which least is
//	             known
//	complete_since  the sequence number from which on all is known
//	truncated    blocks were dropped for want of memory: there may be more
//	foreign      the instance is registered for another model or block size
//	registered   false: no such instance is
//	ranks        by rank: GPU, CPU, DISK held, through: had by going through the tiers
func appendJSONAnswer(dst []byte, q *contract.Query, matches []contract.RankMatch) []byte {
	dst = append(dst, '{')
	if len(matches) > 0 || q.Instance != "" {
		dst = append(appendJSONText(dst, q.Tenant), ':', '{')
		first := true
		instances(matches, func(ranks []contract.RankMatch) {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(appendJSONText(dst, ranks[0].Instance), ':')
			dst = appendJSONInstance(dst, ranks)
		})
		if first {
			dst = appendJSONText(dst, q.Instance)
			dst = append(dst, `:{"longest_matched":0,"DP":{},"GPU":0,"CPU":0,"DISK":0,"complete":false,"registered":false}`...)
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

func appendJSONInstance(dst []byte, ranks []contract.RankMatch) []byte {
	t := totalOf(ranks)
	dst = appendJSONInt(append(dst, '{'), "longest_matched", t.longest)
	dst = append(dst, `,"DP":{`...)
	first := true
	for i := range ranks {
		if ranks[i].Rank == prefixindex.Shared {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendJSONInt(dst, strconv.Itoa(ranks[i].Rank), ranks[i].Through[prefixindex.Disk])
	}
	dst = append(dst, '}', ',')
	dst = appendJSONTiers(dst, &t.in)
	dst = append(dst, `,"complete":`...)
	dst = strconv.AppendBool(dst, t.state == contract.Complete && !t.truncated)
	dst = append(dst, `,"state":"`...)
	dst = append(append(dst, t.state.String()...), '"')
	if t.since > 0 {
		dst = strconv.AppendUint(append(dst, `,"complete_since":`...), t.since, 10)
	}
	if t.truncated {
		dst = append(dst, `,"truncated":true`...)
	}
	if t.foreign {
		dst = append(dst, `,"foreign":true`...)
	}
	dst = append(dst, `,"ranks":{`...)
	for i := range ranks {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSONRank(dst, &ranks[i])
	}
	return append(dst, '}', '}')
}

// sharedName is the rank of what an instance's ranks share.
const sharedName = "shared"

func rankName(rank int) string {
	if rank == prefixindex.Shared {
		return sharedName
	}
	return strconv.Itoa(rank)
}

func appendJSONRank(dst []byte, m *contract.RankMatch) []byte {
	dst = append(append(append(dst, '"'), rankName(m.Rank)...), `":{`...)
	dst = appendJSONTiers(dst, &m.In)
	dst = append(dst, `,"through":{`...)
	dst = appendJSONTiers(dst, &m.Through)
	dst = append(dst, `},"state":"`...)
	dst = append(append(dst, m.State.String()...), '"')
	if m.State == contract.Incomplete && m.Since > 0 {
		dst = strconv.AppendUint(append(dst, `,"complete_since":`...), m.Since, 10)
	}
	return append(dst, '}')
}

func appendJSONTiers(dst []byte, in *[3]int) []byte {
	dst = append(appendJSONInt(dst, "GPU", in[prefixindex.GPU]), ',')
	dst = append(appendJSONInt(dst, "CPU", in[prefixindex.CPU]), ',')
	return appendJSONInt(dst, "DISK", in[prefixindex.Disk])
}

// appendJSONInt appends a field; its name needs no quoting.
func appendJSONInt(dst []byte, name string, n int) []byte {
	dst = append(append(append(dst, '"'), name...), '"', ':')
	return strconv.AppendInt(dst, int64(n), 10)
}

func appendJSONText(dst []byte, text string) []byte {
	plain := true
	for i := range len(text) {
		plain = plain && text[i] >= ' ' && text[i] < 0x7f && text[i] != '"' && text[i] != '\\'
	}
	if plain {
		return append(append(append(dst, '"'), text...), '"')
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		panic("BUG: a text that is no JSON: " + err.Error())
	}
	return append(dst, quoted...)
}
