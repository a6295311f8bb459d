package coordinator_test

import (
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

func TestExplain(t *testing.T) {
	full := kv.GroupSpec{Kind: kv.FullAttention, BlockTokens: 16}
	window := kv.GroupSpec{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 33}
	mamba := kv.GroupSpec{Kind: kv.MambaAlign, BlockTokens: 16}
	chunked := kv.GroupSpec{Kind: kv.ChunkedLocal, BlockTokens: 16, WindowTokens: 64}
	for name, test := range map[string]struct {
		groups []kv.GroupSpec
		eagle  bool
		fine   bool
		tokens int
		absent map[[2]int]kv.Existence
		want   []string
	}{
		"whole": {groups: []kv.GroupSpec{full}, tokens: 161,
			want: []string{"hit 160 of 161 tokens (at most 160", "  group 0 full_attention, block 16: 160 tokens by itself, 10 of 10 chunks stored: everything that can be reused is stored"}},
		"short": {groups: []kv.GroupSpec{full}, tokens: 16,
			want: []string{"hit 0 of 16 tokens (at most 0", "shorter than one unit"}},
		"hole": {groups: []kv.GroupSpec{full, window}, tokens: 161, absent: map[[2]int]kv.Existence{{0, 3}: kv.Absent},
			want: []string{"hit 48 of 161", "* group 0 full_attention, block 16: 48 tokens by itself, 9 of 10 chunks stored: chunk 3 (tokens 48 to 64) is absent and ends the leading run", "  group 1 sliding_window, block 16, window 33: 160 tokens by itself"}},
		"window": {groups: []kv.GroupSpec{full, window}, tokens: 161, absent: map[[2]int]kv.Existence{{1, 9}: kv.Loading, {1, 7}: kv.Absent},
			want: []string{"hit 112 of 161", "some answers are pending", "* group 1", "no whole window of 33 tokens is stored before a boundary beyond 112 tokens; chunk 7 (tokens 112 to 128) is absent"}},
		"mamba": {groups: []kv.GroupSpec{full, mamba}, tokens: 161, absent: map[[2]int]kv.Existence{{1, 9}: kv.Absent, {1, 8}: kv.Absent},
			want: []string{"hit 128 of 161", "* group 1", "no state is stored beyond 128 tokens"}},
		"chunked": {groups: []kv.GroupSpec{full, chunked}, tokens: 161, absent: map[[2]int]kv.Existence{{1, 8}: kv.Absent},
			want: []string{"hit 128 of 161", "* group 1", "within the attention chunk of 64 tokens that the hit ends in, chunk 8 (tokens 128 to 144) is absent"}},
		"eagle": {groups: []kv.GroupSpec{full}, eagle: true, tokens: 161,
			want: []string{"hit 144 of 161", "* group 0", "everything is stored; the drafter recomputes the last unit"}},
		"eagle and hole": {groups: []kv.GroupSpec{full}, eagle: true, tokens: 161, absent: map[[2]int]kv.Existence{{0, 5}: kv.Absent},
			want: []string{"hit 64 of 161", "chunk 5 (tokens 80 to 96) is absent and ends the leading run; the drafter recomputes the last unit"}},
	} {
		t.Run(name, func(t *testing.T) {
			co := mustNew(t, coordinator.Config{Groups: test.groups, HashBlockTokens: 16, SchedulerBlockTokens: 16, UseEagle: test.eagle})
			e, err := co.Explain(test.tokens, test.tokens/16, func(group, hashIndex int) kv.Existence {
				if answer, ok := test.absent[[2]int{group, hashIndex}]; ok {
					return answer
				}
				return kv.Present
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if !strings.Contains(e.String(), want) {
					t.Errorf("no %q in\n%s", want, e)
				}
			}
		})
	}
}
