package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Causes of a refused registration, with their codes in refusalCode.
var (
	errBadDescriptor  = errors.New("bad descriptor")
	errUnsupported    = errors.New("not supported")
	errWrongNamespace = errors.New("wrong namespace")
)

// rank is what a registration fixed: one engine rank's geometry. It is immutable
// and pure; the memory belongs to the session.
type rank struct {
	spec      *kv.NamespaceSpec
	coord     *coordinator.Coordinator
	groups    []rankGroup
	held      int // shards of a block
	numBlocks uint32
	slots     uint64
	engine    string // lease holder
	verify    bool
}

// rankGroup is one store group as this rank holds it.
type rankGroup struct {
	blockTokens int
	scale       int // hash blocks a chunk covers
	shardBytes  int
	shard       uint32 // the first that the rank holds
	// The rank puts only chunks whose index is phase modulo stride.
	stride, phase int
}

// newRank checks that the registration can be served.
func newRank(reg *connector.Register) (*rank, error) {
	spec := reg.Namespace
	cfg := coordinator.ConfigOf(&spec)
	cfg.StoreRetention = reg.StoreRetention
	coord, err := coordinator.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsupported, err)
	}
	if err := coord.Servable(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsupported, err)
	}
	if err := reg.CheckGeometry(); err != nil {
		return nil, fmt.Errorf("%w: %w", errWrongNamespace, err)
	}
	if reg.NumBlocks > math.MaxUint32 {
		return nil, fmt.Errorf("%w: %d blocks", errUnsupported, reg.NumBlocks)
	}
	r := &rank{
		spec: &spec, coord: coord, numBlocks: uint32(reg.NumBlocks), slots: uint64(reg.JobSlots),
		held: reg.Held(), engine: reg.LookupEngine, verify: reg.Verify,
	}
	for g, gs := range spec.Groups {
		if gs.ShardBytes > math.MaxUint32 {
			return nil, fmt.Errorf("%w: group %d has shards of %d bytes", errUnsupported, g, gs.ShardBytes)
		}
		r.groups = append(r.groups, rankGroup{
			blockTokens: gs.BlockTokens, scale: gs.BlockTokens / spec.HashBlockTokens, shardBytes: gs.ShardBytes,
			shard: uint32(reg.ShardByGroup[g]), stride: reg.PutStride[g], phase: reg.PutPhase[g],
		})
	}
	return r, nil
}

// local returns which of the rank's shards of a group one is.
func (r *rank) local(group int, shard uint32) int { return int(shard - r.groups[group].shard) }

// slot returns the index of a job's word on the board.
func (r *rank) slot(job uint64) int { return int(job % r.slots) }

// errJob reports a job that contradicts the registration.
var errJob = errors.New("malformed job")

// blobOf checks a job's hashes against the namespace.
func (r *rank) blobOf(hashes []byte, hashLen int) (kv.HashBlob, error) {
	blob, err := kv.NewHashBlob(hashes, hashLen)
	if err != nil {
		return blob, fmt.Errorf("%w: %w", errJob, err)
	}
	if blob.Len() > 0 && hashLen != r.spec.HashBytes {
		return blob, fmt.Errorf("%w: hashes of %d bytes, registered are %d", errJob, hashLen, r.spec.HashBytes)
	}
	return blob, nil
}

// checkTables checks a job's block tables: one for each group, ids in range.
func (r *rank) checkTables(tables [][]byte) error {
	if len(tables) != len(r.groups) {
		return fmt.Errorf("%w: %d block tables for %d groups", errJob, len(tables), len(r.groups))
	}
	for g, table := range tables {
		for i := range len(table) / 4 {
			if id := blockAt(table, i); id >= r.numBlocks {
				return fmt.Errorf("%w: group %d: block id %d of %d", errJob, g, id, r.numBlocks)
			}
		}
	}
	return nil
}

// blockAt returns entry i of a block table.
func blockAt(table []byte, i int) uint32 { return binary.LittleEndian.Uint32(table[4*i:]) }

// nullBlock is never read or written.
const nullBlock = 0
