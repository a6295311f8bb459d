package worker

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// storeItem is one shard to save. The plan has a block's side by side.
type storeItem struct {
	put   store.PutItem
	block uint32
	// from is where the chunk begins in tokens; a boundary put, which leaves no
	// hole in the request's saved range, has -1.
	from int
}

// planStore lists what a part of a store job saves behind start tokens, boundary puts
// first, then group by group in chunk order. end is the request's saved length
// when all of it is stored.
func (r *rank) planStore(job *connector.StoreJob, start int) (items []storeItem, end int, err error) {
	blob, err := r.hashesOf(job)
	if err != nil {
		return nil, 0, err
	}
	if err := r.checkTables(job.Blocks); err != nil {
		return nil, 0, err
	}
	if items, err = r.boundaryPuts(job, blob); err != nil {
		return nil, 0, err
	}
	l := r.spec.SchedulerBlockTokens
	tokenLen, prefillEnd := bounded(job, l)
	end = tokenLen / l * l
	if end/r.spec.HashBlockTokens > blob.end() {
		return nil, 0, fmt.Errorf("%w: %d tokens want %d hashes, there are %d", errJob, end, end/r.spec.HashBlockTokens, blob.end())
	}
	if end <= start {
		return r.everyShard(items), end, nil
	}
	masks, err := r.coord.StoreMask(end, start, prefillEnd)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errJob, err)
	}
	for g, group := range r.groups {
		table, begin := job.Blocks[g], job.FirstBlockOf(g)
		for chunk := max(masks[g].First, begin); chunk < min(masks[g].End(), begin+len(table)/4); chunk++ {
			block := blockAt(table, chunk-begin)
			if block == nullBlock || !masks[g].Has(chunk) || !group.puts(chunk) {
				continue
			}
			if !blob.has((chunk+1)*group.scale-1, chunk*group.scale-1) {
				return nil, 0, fmt.Errorf("%w: group %d: chunk %d lies before hash %d", errJob, g, chunk, blob.first)
			}
			items = append(items, storeItem{block: block, from: chunk * group.blockTokens, put: store.PutItem{
				Group: uint32(g), Shard: group.shard, Depth: uint32(chunk),
				Hash: blob.at((chunk+1)*group.scale - 1), Parent: r.parent(blob, g, chunk),
			}})
		}
	}
	return r.everyShard(items), end, nil
}

// everyShard lists for each block all shards that the rank holds.
func (r *rank) everyShard(blocks []storeItem) []storeItem {
	if r.held == 1 {
		return blocks
	}
	items := make([]storeItem, 0, len(blocks)*r.held)
	for _, it := range blocks {
		for range r.held {
			items = append(items, it)
			it.put.Shard++
		}
	}
	return items
}

// bounded applies the request's max_offload_tokens: the length to save, and the
// length of the prefill that the masks are for. A prefix that is cut short is one
// that a later request will have found, not this one's: what a window needs for
// it lies before the cut.
func bounded(job *connector.StoreJob, schedulerBlock int) (tokenLen, prefillEnd int) {
	tokenLen, prefillEnd = job.TokenLen, job.PrefillEnd
	if most := job.Controls.MaxOffloadTokens; most != nil {
		tokenLen = min(tokenLen, *most)
		if *most < prefillEnd {
			prefillEnd = *most/schedulerBlock*schedulerBlock + 1
		}
	}
	return tokenLen, prefillEnd
}

// boundaryPuts lists the blocks that are saved under the hash of an explicit
// prefix: the state of a Mamba group, the partial end of a prompt.
func (r *rank) boundaryPuts(job *connector.StoreJob, blob hashRun) ([]storeItem, error) {
	var items []storeItem
	for _, b := range job.BoundaryPuts {
		g, block, tokens := b[0], b[1], b[2]
		if g < 0 || g >= len(r.groups) || block < 0 || block >= int(r.numBlocks) {
			return nil, fmt.Errorf("%w: a boundary put of group %d, block %d", errJob, g, block)
		}
		index := tokens/r.spec.HashBlockTokens - 1
		if tokens%r.spec.HashBlockTokens != 0 || index < 0 || index >= blob.end() {
			return nil, fmt.Errorf("%w: group %d: a boundary put at %d tokens with %d hashes", errJob, g, tokens, blob.end())
		}
		chunk := ceilDiv(tokens, r.groups[g].blockTokens) - 1
		if !blob.has(index, chunk*r.groups[g].scale-1) {
			return nil, fmt.Errorf("%w: group %d: a boundary put at %d tokens lies before hash %d", errJob, g, tokens, blob.first)
		}
		if most := job.Controls.MaxOffloadTokens; most != nil && tokens > *most {
			continue
		}
		if block == nullBlock || !r.groups[g].puts(chunk) {
			continue
		}
		items = append(items, storeItem{block: uint32(block), from: -1, put: store.PutItem{
			Group: uint32(g), Shard: r.groups[g].shard, Depth: uint32(chunk),
			Hash: blob.at(index), Parent: r.parent(blob, g, chunk),
		}})
	}
	return items, nil
}

// parent returns the hash of the chunk before, zero for the first.
func (r *rank) parent(blob hashRun, group, chunk int) kv.Hash {
	if chunk == 0 {
		return kv.Hash{}
	}
	return blob.at(chunk*r.groups[group].scale - 1)
}

// puts reports whether this rank is the one of its equals that puts the chunk.
func (g *rankGroup) puts(chunk int) bool { return chunk%g.stride == g.phase }
