package connector

import (
	"math"
	"strings"
	"testing"
)

func TestGeometry(t *testing.T) {
	const blocks = 8
	for name, c := range map[string]struct {
		bytes    uint64 // of the region
		shard    int
		segments []KVSegment
		want     string
	}{
		"layer after layer (LBHNC)": {2048, 256, []KVSegment{{Offset: 0, BlockStride: 128, Bytes: 128}, {Offset: 1024, BlockStride: 128, Bytes: 128}}, ""},
		"block after block (BLHNC)": {2048, 256, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 128}, {Offset: 128, BlockStride: 256, Bytes: 128}}, ""},
		"order does not matter":     {2048, 256, []KVSegment{{Offset: 128, BlockStride: 256, Bytes: 128}, {Offset: 0, BlockStride: 256, Bytes: 128}}, ""},
		"pieces with gaps":          {2048, 64, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 64}}, ""},
		"one byte beyond":           {2047, 256, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 256}}, "do not fit"},
		"stride runs away":          {2048, 256, []KVSegment{{Offset: 0, BlockStride: math.MaxUint64 / 4, Bytes: 256}}, "do not fit"},
		"offset overflows":          {2048, 256, []KVSegment{{Offset: math.MaxUint64 - 100, BlockStride: 256, Bytes: 256}}, "do not fit"},
		"blocks overlap":            {2048, 256, []KVSegment{{Offset: 0, BlockStride: 128, Bytes: 256}}, "overlap"},
		"empty piece":               {2048, 256, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 0}}, "overlap"},
		"segments share bytes":      {2048, 256, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 128}, {Offset: 64, BlockStride: 256, Bytes: 128}}, "share bytes"},
		"segments one block off":    {2304, 256, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 128}, {Offset: 256, BlockStride: 256, Bytes: 128}}, "share bytes"},
		"strides mixed":             {4096, 256, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 128}, {Offset: 128, BlockStride: 512, Bytes: 128}}, "strides 256 and 512"},
		"wraps around the stride":   {4096, 256, []KVSegment{{Offset: 192, BlockStride: 256, Bytes: 128}, {Offset: 256, BlockStride: 256, Bytes: 128}}, "share bytes"},
		"shard length differs":      {2048, 255, []KVSegment{{Offset: 0, BlockStride: 256, Bytes: 256}}, "shard_bytes 255"},
		"group without segments":    {2048, 256, []KVSegment{{Group: 1, Offset: 0, BlockStride: 256, Bytes: 256}}, "group 1 of 1"},
		"unknown region":            {2048, 256, []KVSegment{{Region: 1, Offset: 0, BlockStride: 256, Bytes: 256}}, "region 1 of 1"},
	} {
		reg := testRegister()
		reg.NumBlocks = blocks
		reg.Regions[0].Bytes = c.bytes
		reg.Namespace.Groups[0].ShardBytes = c.shard
		reg.Segments = c.segments
		err := reg.CheckGeometry()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
