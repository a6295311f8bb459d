package worker

import (
	"encoding/binary"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// loadItem is one shard to fetch.
type loadItem struct {
	group int
	shard uint32
	block uint32
	hash  kv.Hash
}

// planLoad lists what a load fills, group by group, in chunk order. An empty
// list is a load that has nothing to do.
//
// Chunks begin at the scheduler block of the local hit: a hit that ends inside
// one has no block boundary there in every group. The last chunk may be partial;
// its key is then the boundary that the lookup named, and its shard is whole all
// the same.
func (r *rank) planLoad(job *connector.LoadJob) ([]loadItem, error) {
	blob, err := r.blobOf(job.Hashes, job.HashLen)
	if err != nil {
		return nil, err
	}
	if err := r.checkTables(job.Blocks); err != nil {
		return nil, err
	}
	if job.TokenLen%r.coord.Alignment() != 0 {
		return nil, fmt.Errorf("%w: a load of %d tokens, hits are multiples of %d", errJob, job.TokenLen, r.coord.Alignment())
	}
	tails, err := r.tailsOf(job)
	if err != nil {
		return nil, err
	}
	hit, masks, err := r.coord.Find(job.TokenLen/r.spec.HashBlockTokens, job.TokenLen, false, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errJob, err)
	}
	if hit.Tokens != job.TokenLen {
		return nil, fmt.Errorf("%w: %d tokens can't be a hit, the longest below is %d", errJob, job.TokenLen, hit.Tokens)
	}
	l := r.spec.SchedulerBlockTokens
	start := job.LocalTokens / l * l
	var items []loadItem
	for g, group := range r.groups {
		table := job.Blocks[g]
		first, end := max(ceilDiv(start, group.blockTokens), masks[g].First), min(ceilDiv(job.TokenLen, group.blockTokens), masks[g].End())
		for chunk := first; chunk < end; chunk++ {
			if !masks[g].Has(chunk) {
				continue
			}
			if 4*chunk >= len(table) {
				return nil, fmt.Errorf("%w: group %d: chunk %d has no block, the table has %d", errJob, g, chunk, len(table)/4)
			}
			block := blockAt(table, chunk)
			if block == nullBlock {
				continue
			}
			key := min((chunk+1)*group.blockTokens, job.TokenLen)
			if key == job.TokenLen && tails[g] > 0 {
				key = tails[g]
			}
			index := key/r.spec.HashBlockTokens - 1
			if index < 0 || index >= blob.Len() {
				return nil, fmt.Errorf("%w: group %d: chunk %d wants hash %d of %d", errJob, g, chunk, index, blob.Len())
			}
			for k := range uint32(r.held) {
				items = append(items, loadItem{group: g, shard: group.shard + k, block: block, hash: blob.At(index)})
			}
		}
	}
	return items, nil
}

// tailsOf returns the tail boundary of each group in tokens, 0 for none.
func (r *rank) tailsOf(job *connector.LoadJob) ([]int, error) {
	tails := make([]int, len(r.groups))
	for _, t := range job.TailBoundaries {
		g, tokens := t[0], t[1]
		if g < 0 || g >= len(tails) {
			return nil, fmt.Errorf("%w: a tail boundary of group %d of %d", errJob, g, len(tails))
		}
		b := r.groups[g].blockTokens
		if tokens < job.TokenLen || tokens > ceilDiv(job.TokenLen, b)*b {
			return nil, fmt.Errorf("%w: group %d: the tail boundary %d is not in the last block of %d tokens", errJob, g, tokens, job.TokenLen)
		}
		tails[g] = tokens
	}
	return tails, nil
}

// failedBlocks lists the blocks of the items that are not loaded, as a Result
// spells them, each once however many of its shards are missing. loaded may be
// shorter than items: the rest is not.
func failedBlocks(items []loadItem, loaded []bool) []byte {
	var failed []byte
	last := -1
	for i := range items {
		if i < len(loaded) && loaded[i] || last >= 0 && items[last].sameBlock(&items[i]) {
			continue
		}
		last = i
		failed = binary.LittleEndian.AppendUint32(failed, items[i].block)
	}
	return failed
}

// sameBlock tells two shards of one chunk, which the plan has side by side.
func (it *loadItem) sameBlock(other *loadItem) bool {
	return it.group == other.group && it.block == other.block && it.hash == other.hash
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
