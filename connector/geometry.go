package connector

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// CheckGeometry reports the first way in which the registered segments do not
// describe whole blocks inside their regions.
//
// It guards memory: a copy trusts that blocks 1 to NumBlocks-1 of every segment
// lie inside the region and that no two blocks of a group share a byte. The
// in-tree connector derives a wrong stride for one layout and would overwrite a
// neighbour's KV; a registration that says so is refused here. Groups may lie
// over one another: hybrid models share the memory between them.
func (m *Register) CheckGeometry() error {
	held := m.Held()
	sum := make([]uint64, len(m.Namespace.Groups)*held)
	byGroup := make([][]KVSegment, len(m.Namespace.Groups))
	for i, s := range m.Segments {
		if s.Group < 0 || s.Group >= len(byGroup) {
			return fmt.Errorf("segment %d: group %d of %d", i, s.Group, len(byGroup))
		}
		if s.Shard < 0 || s.Shard >= held {
			return fmt.Errorf("segment %d: shard %d of the %d that are held", i, s.Shard, held)
		}
		if s.Region < 0 || s.Region >= len(m.Regions) {
			return fmt.Errorf("segment %d: region %d of %d", i, s.Region, len(m.Regions))
		}
		if s.Bytes == 0 || s.Bytes > s.BlockStride {
			return fmt.Errorf("segment %d: blocks of %d bytes at a stride of %d overlap", i, s.Bytes, s.BlockStride)
		}
		end, ok := extent(s, m.NumBlocks)
		if !ok || end > m.Regions[s.Region].Bytes {
			return fmt.Errorf("segment %d: %d blocks at offset %d with stride %d do not fit into region %d of %d bytes",
				i, m.NumBlocks, s.Offset, s.BlockStride, s.Region, m.Regions[s.Region].Bytes)
		}
		sum[s.Group*held+s.Shard] += s.Bytes
		byGroup[s.Group] = append(byGroup[s.Group], s)
	}
	for g, spec := range m.Namespace.Groups {
		for shard, bytes := range sum[g*held : (g+1)*held] {
			if bytes != uint64(spec.ShardBytes) {
				return fmt.Errorf("group %d: segments of %d bytes a block for shard %d, the namespace says shard_bytes %d",
					g, bytes, shard, spec.ShardBytes)
			}
		}
		if err := checkDisjoint(byGroup[g], m.NumBlocks); err != nil {
			return fmt.Errorf("group %d: %w", g, err)
		}
	}
	return nil
}

// Held returns how many shards of a block the rank holds.
func (m *Register) Held() int { return max(m.HeldShards, 1) }

// extent returns the end of a segment's last block; ok is false on overflow.
func extent(s KVSegment, numBlocks int) (end uint64, ok bool) {
	hi, span := bits.Mul64(s.BlockStride, uint64(numBlocks-1))
	a, c1 := bits.Add64(span, s.Offset, 0)
	b, c2 := bits.Add64(a, s.Bytes, 0)
	return b, hi == 0 && c1 == 0 && c2 == 0
}

// checkDisjoint reports segments of a group that share bytes. Segments whose
// extents meet must interleave: the same stride, and different places in it.
//
// REQUIRES: every segment lies inside its region.
func checkDisjoint(segments []KVSegment, numBlocks int) error {
	slices.SortFunc(segments, func(a, b KVSegment) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Offset, b.Offset))
	})
	for i := 0; i < len(segments); {
		end, _ := extent(segments[i], numBlocks)
		j := i + 1
		for ; j < len(segments) && segments[j].Region == segments[i].Region && segments[j].Offset < end; j++ {
			e, _ := extent(segments[j], numBlocks)
			end = max(end, e)
		}
		if err := checkInterleaved(segments[i:j]); err != nil {
			return err
		}
		i = j
	}
	return nil
}

func checkInterleaved(cluster []KVSegment) error {
	if len(cluster) < 2 {
		return nil
	}
	stride := cluster[0].BlockStride
	type run struct{ from, to uint64 }
	var runs []run
	for _, s := range cluster {
		if s.BlockStride != stride {
			return fmt.Errorf("segments at offsets %d and %d of region %d overlap with strides %d and %d",
				cluster[0].Offset, s.Offset, s.Region, stride, s.BlockStride)
		}
		from := s.Offset % stride
		if to := from + s.Bytes; to > stride {
			runs = append(runs, run{from, stride}, run{0, to - stride})
		} else {
			runs = append(runs, run{from, to})
		}
	}
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(runs); i++ {
		if runs[i].from < runs[i-1].to {
			return fmt.Errorf("segments near offset %d of region %d share bytes of their blocks", cluster[0].Offset, cluster[0].Region)
		}
	}
	return nil
}
