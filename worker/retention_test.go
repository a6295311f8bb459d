package worker

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// retentionRegister has full attention and a window of one block in blocks of 16
// tokens; the engine keeps the last window of a request.
func retentionRegister(retention int) *connector.Register {
	return &connector.Register{
		NumBlocks: 100, JobSlots: 8, ShardByGroup: []int{0, 0}, PutStride: []int{1, 1}, PutPhase: []int{0, 0},
		Regions:        []connector.KVRegion{{Bytes: 100 * 64}},
		Segments:       []connector.KVSegment{{Group: 0, BlockStride: 64, Bytes: 64}, {Group: 1, BlockStride: 64, Bytes: 64}},
		StoreRetention: retention,
		Namespace: kv.NamespaceSpec{
			Model: "m", HashBytes: 8, HashBlockTokens: 16, SchedulerBlockTokens: 32, TP: 1, PP: 1, PCP: 1, DCP: 1,
			Groups: []kv.GroupSpec{
				{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 64, Shards: 1},
				{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 16, ShardBytes: 64, Shards: 1},
			},
		},
	}
}

// TestStoreRetention: a registration chooses which windows are stored.
func TestStoreRetention(t *testing.T) {
	table := planTable(1, 2, 3, 4, 5, 6, 7, 8)
	job := &connector.StoreJob{TokenLen: 128, PrefillEnd: 129, HashLen: 8, Hashes: planHashes(8), Blocks: [][]byte{table, table}}
	for retention, want := range map[int][]uint32{
		coordinator.RetentionAsEngine: {8},
		coordinator.RetentionDense:    {2, 4, 6, 8},
		64:                            {4, 8},
	} {
		r, err := newRank(retentionRegister(retention))
		if err != nil {
			t.Fatal(err)
		}
		items, _, err := r.planStore(job, 0)
		if err != nil {
			t.Fatal(err)
		}
		var windows []uint32
		for _, it := range items {
			if it.put.Group == 1 {
				windows = append(windows, it.block)
			}
		}
		if len(items)-len(windows) != 8 || !slices.Equal(windows, want) {
			t.Errorf("retention %d: %d chunks of full attention, windows %v, want %v", retention, len(items)-len(windows), windows, want)
		}
	}
	if _, err := newRank(retentionRegister(48)); !errors.Is(err, errUnsupported) || !strings.Contains(err.Error(), "multiple of scheduler_block_tokens 32") {
		t.Errorf("a retention between boundaries: %v", err)
	}
}
