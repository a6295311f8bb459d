package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// hybridRank has full attention in blocks of 32 tokens and a sliding window of 32
// tokens in blocks of 16; hits are multiples of 32, or of 16 when fine.
func hybridRank(t testing.TB, fine bool, edits ...func(*connector.Register)) *rank {
	t.Helper()
	reg := &connector.Register{
		NumBlocks: 100, JobSlots: 8, ShardByGroup: []int{2, 1}, PutStride: []int{1, 2}, PutPhase: []int{0, 1},
		Regions: []connector.KVRegion{{Bytes: 100 * 64}},
		Segments: []connector.KVSegment{
			{Group: 0, BlockStride: 64, Bytes: 64}, {Group: 1, BlockStride: 64, Bytes: 32},
		},
		Namespace: kv.NamespaceSpec{
			Model: "m", HashBytes: 8, HashBlockTokens: 16, SchedulerBlockTokens: 32, RetentionTokens: -1, TP: 1, PP: 1, PCP: 1, DCP: 1,
			Groups: []kv.GroupSpec{
				{Kind: kv.FullAttention, BlockTokens: 32, ShardBytes: 64, Shards: 4},
				{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 32, ShardBytes: 32, Shards: 2},
			},
		},
	}
	if fine {
		reg.Namespace.HitAlignmentTokens = 16
	}
	for _, edit := range edits {
		edit(reg)
	}
	r, err := newRank(reg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func planHashes(n int) []byte {
	var out []byte
	for i := range n {
		out = append(out, fmt.Sprintf("hash%04d", i)...)
	}
	return out
}

func planTable(ids ...uint32) []byte {
	var out []byte
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint32(out, id)
	}
	return out
}

// spell writes a plan as "group:block=hash index".
func spell(items []loadItem) (out []string) {
	for _, it := range items {
		out = append(out, fmt.Sprintf("%d:%d=%s", it.group, it.block, bytes.TrimLeft(it.hash[4:8], "0")))
	}
	return out
}

func TestPlanLoadOfSeveralGroups(t *testing.T) {
	load := &connector.LoadJob{
		TokenLen: 128, HashLen: 8, Hashes: planHashes(8),
		Blocks: [][]byte{planTable(1, 2, 3, 4), planTable(0, 0, 0, 0, 0, 0, 11, 12)},
	}
	for name, c := range map[string]struct {
		local int
		want  []string
	}{
		"all":                     {0, []string{"0:1=1", "0:2=3", "0:3=5", "0:4=7", "1:11=6", "1:12=7"}},
		"behind a local hit":      {64, []string{"0:3=5", "0:4=7", "1:11=6", "1:12=7"}},
		"a hit inside a block":    {95, []string{"0:3=5", "0:4=7", "1:11=6", "1:12=7"}},
		"the window is half here": {96, []string{"0:4=7", "1:11=6", "1:12=7"}},
		"everything is here":      {128, nil},
		"more than that":          {256, nil},
	} {
		load.LocalTokens = c.local
		items, err := hybridRank(t, false).planLoad(load)
		if err != nil || !slices.Equal(spell(items), c.want) {
			t.Errorf("%s: %v, %v; want %v", name, spell(items), err, c.want)
		}
	}
}

// A hit of 112 tokens ends inside the fourth block of 32. That block was stored
// under the boundary that the lookup found, here its end.
func TestPlanLoadWithTail(t *testing.T) {
	r := hybridRank(t, true)
	load := &connector.LoadJob{
		TokenLen: 112, LocalTokens: 64, HashLen: 8, Hashes: planHashes(8),
		Blocks:         [][]byte{planTable(1, 2, 3, 4), planTable(0, 0, 0, 0, 0, 10, 11, 0)},
		TailBoundaries: [][2]int{{0, 128}, {1, 112}},
	}
	items, err := r.planLoad(load)
	if got, want := spell(items), []string{"0:3=5", "0:4=7", "1:10=5", "1:11=6"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	load.TailBoundaries = nil
	items, err = r.planLoad(load)
	if got, want := spell(items), []string{"0:3=5", "0:4=6", "1:10=5", "1:11=6"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("without boundaries: %v, %v; want %v", got, err, want)
	}
}

func TestPlanStoreOfSeveralGroups(t *testing.T) {
	job := &connector.StoreJob{
		TokenLen: 100, PrefillEnd: 100, HashLen: 8, Hashes: planHashes(8), // 96 is the last scheduler block
		Blocks: [][]byte{planTable(1, 2, 0, 4), planTable(10, 11, 12, 13, 14, 15, 16)},
	}
	items, end, err := hybridRank(t, false).planStore(job, 32)
	if err != nil || end != 96 {
		t.Fatalf("end %d, %v", end, err)
	}
	var got []string
	for _, it := range items {
		got = append(got, fmt.Sprintf("%d:%d from %d shard %d depth %d", it.put.Group, it.block, it.from, it.put.Shard, it.put.Depth))
	}
	// Group 0: chunk 1 (chunk 2 has the null block). Group 1: chunks 2 to 5, of
	// which this rank puts the odd ones.
	want := []string{"0:2 from 32 shard 2 depth 1", "1:13 from 48 shard 1 depth 3", "1:15 from 80 shard 1 depth 5"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if items[1].put.Parent != hashOf(job.Hashes, 2) || items[1].put.Hash != hashOf(job.Hashes, 3) {
		t.Errorf("chain of %+v", items[1].put)
	}
}

// The bound counts for blocks and boundaries, and the window that a hit of the
// bounded length needs is the one before the bound.
func TestMaxOffloadTokensBoundsWhatIsStored(t *testing.T) {
	r := hybridRank(t, true, func(reg *connector.Register) {
		reg.PutStride, reg.PutPhase = []int{1, 1}, []int{0, 0}
		reg.Namespace.RetentionTokens = 0 // windows at the prefill's end alone
	})
	for _, c := range []struct {
		most int
		end  int
		want []string
	}{
		{0, 0, nil},
		{31, 0, nil},
		{64, 64, []string{"1:14@64", "0:1@32", "0:2@64", "1:12@48", "1:13@64"}},
		{100, 96, []string{"1:14@64", "0:1@32", "0:2@64", "0:3@96", "1:14@80", "1:15@96"}},
	} {
		job := &connector.StoreJob{
			TokenLen: 128, PrefillEnd: 128, HashLen: 8, Hashes: planHashes(8),
			Blocks:       [][]byte{planTable(1, 2, 3, 4), planTable(10, 11, 12, 13, 14, 15, 16, 17)},
			BoundaryPuts: [][3]int{{1, 14, 64}, {1, 15, 112}},
			Controls:     connector.Controls{MaxOffloadTokens: &c.most},
		}
		items, end, err := r.planStore(job, 0)
		if err != nil || end != c.end {
			t.Errorf("at most %d: end %d, %v", c.most, end, err)
		}
		var got []string
		for _, it := range items {
			for i := range 8 {
				if it.put.Hash == hashOf(job.Hashes, i) {
					got = append(got, fmt.Sprintf("%d:%d@%d", it.put.Group, it.block, 16*(i+1)))
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("at most %d: got %v, want %v", c.most, got, c.want)
		}
	}
}

func hashOf(blob []byte, i int) (h kv.Hash) {
	copy(h[:], blob[8*i:8*i+8])
	return h
}

// FuzzPlan: no job makes a plan that leaves the KV cache, and none panics.
func FuzzPlan(f *testing.F) {
	f.Add(128, 0, 100, 8, planHashes(8), planTable(1, 2, 3, 4), planTable(0, 0, 0, 0, 0, 0, 11, 12), 0, 128, 1, true)
	f.Add(112, 64, 112, 8, planHashes(8), planTable(1, 2, 3, 4), planTable(1, 1, 1, 1, 1, 1, 11), 1, 112, 5, false)
	f.Fuzz(func(t *testing.T, tokens, local, prefill, hashLen int, hashes, a, b []byte, group, boundary, block int, fine bool) {
		r := hybridRank(t, fine)
		load := &connector.LoadJob{Type: connector.TypeLoad, Job: 1, TokenLen: tokens, LocalTokens: local, HashLen: hashLen, Hashes: hashes,
			Blocks: [][]byte{a, b}, TailBoundaries: [][2]int{{group, boundary}}}
		put := connector.StoreJob{TokenLen: tokens, PrefillEnd: prefill, HashLen: hashLen, Hashes: hashes,
			Blocks: [][]byte{a, b}, BoundaryPuts: [][3]int{{group, block, boundary}}}
		if decodes(t, load) {
			items, err := r.planLoad(load)
			if err != nil && !errors.Is(err, errJob) {
				t.Fatalf("load: %v", err)
			}
			for _, it := range items {
				if it.block == nullBlock || it.block >= r.numBlocks {
					t.Fatalf("a load of block %d", it.block)
				}
			}
		}
		if decodes(t, &connector.StoreBatch{Type: connector.TypeStore, Job: 1, Parts: []connector.StoreJob{put}}) {
			items, _, err := r.planStore(&put, 0)
			if err != nil && !errors.Is(err, errJob) {
				t.Fatalf("store: %v", err)
			}
			for _, it := range items {
				if it.block == nullBlock || it.block >= r.numBlocks {
					t.Fatalf("a store of block %d", it.block)
				}
			}
		}
	})
}

// decodes reports whether a message passes the codec: plans see no others.
func decodes(t *testing.T, msg any) bool {
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = connector.Decode(frame[4:])
	return err == nil
}
