package lookup

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	random "math/rand/v2"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

const (
	// hashBytes is the length of vLLM's sha256 block hashes.
	hashBytes = 32
	// blockTokens is vLLM's usual block.
	blockTokens = 16
	// shardBytes is what a chunk's shard would have; nothing is written.
	shardBytes = 4 << 10
	// leastBytes is what the smallest store has.
	leastBytes = 2 << 20
	// bytesPerChunk is the part of a store that has a record for each chunk.
	bytesPerChunk = 32 << 10
	batch         = 512
)

// hashOf is a distinct hash for every number.
func hashOf(n int) (h kv.Hash) {
	for i := range hashBytes / 8 {
		binary.LittleEndian.PutUint64(h[8*i:], (uint64(n)+uint64(i)<<40+1)*0x9E3779B97F4A7C15)
	}
	return h
}

// blobOf is the hashes of count chunks from a number on, back to back.
func blobOf(from, count int) []byte {
	blob := make([]byte, 0, count*hashBytes)
	for n := range count {
		h := hashOf(from + n)
		blob = append(blob, h[:hashBytes]...)
	}
	return blob
}

// specOf is a model whose chunks have a shard for each of tp ranks.
func specOf(tp int) *kv.NamespaceSpec {
	return &kv.NamespaceSpec{
		Model: fmt.Sprintf("bench/tp%d", tp), Dtype: "bfloat16", Layout: "LBHNC/rank_local", HashAlgorithm: "sha256", HashBytes: hashBytes,
		HashBlockTokens: blockTokens, SchedulerBlockTokens: blockTokens, TP: tp, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: blockTokens, ShardBytes: shardBytes, Shards: tp}},
	}
}

// recordsOnly is a segment of which only the tables get memory.
type recordsOnly struct {
	*shm.Segment
	dataOffset uint64
}

// Prepare implements embedded.Memory.
func (r recordsOnly) Prepare(offset, n uint64) error {
	if offset >= r.dataOffset {
		return nil
	}
	return r.Segment.Prepare(offset, n)
}

var _ embedded.Memory = recordsOnly{}

// filled makes a segment in which each tensor-parallel size has the asked chunks
// (numbers 0 to asked) in its part of the others: in one piece in the midst of
// them, as they were put one after the other, or scattered, each put at some time
// between them.
func filled(asked, others int, sizes []int, scattered bool) (*shm.Segment, embedded.Layout, error) {
	var uuid [16]byte
	_, _ = rand.Read(uuid[:]) // it never fails
	layout, err := embedded.NewLayout(uuid, max(uint64(others+2*asked*len(sizes))*bytesPerChunk, leastBytes))
	if err != nil {
		return nil, layout, err
	}
	segment, err := shm.NewSegment("mooncake-bench", layout.FileBytes)
	if err != nil {
		return nil, layout, err
	}
	if err := fill(recordsOnly{segment, layout.DataOffset}, layout, asked, others, sizes, scattered); err != nil {
		return nil, layout, fmt.Errorf("fill the segment: %w", err)
	}
	return segment, layout, nil
}

func fill(memory embedded.Memory, layout embedded.Layout, asked, others int, sizes []int, scattered bool) error {
	master, err := embedded.Create(memory, layout, embedded.Options{
		Alive: func(uint32, uint64) bool { return true }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	for more := true; more; {
		if more, err = master.PrepareNext(); err != nil {
			return err
		}
	}
	// A process that is dead to whoever adopts the segment.
	session := embedded.Session{Client: 1, Number: 1}
	if err := master.OpenSession(session, 1<<22+1, 1, embedded.Declaration{}); err != nil {
		return err
	}
	for _, tp := range sizes {
		ns, err := master.OpenNamespace(specOf(tp))
		if err != nil {
			return err
		}
		if err := put(master, session, ns, orderOf(asked, others/len(sizes), scattered), tp); err != nil {
			return err
		}
	}
	return nil
}

// orderOf is the numbers of all chunks as they are put.
func orderOf(asked, others int, scattered bool) []int {
	const first = 1 << 30 // of the others
	order := make([]int, 0, asked+others)
	for n := range others / 2 {
		order = append(order, first+n)
	}
	for n := range asked {
		order = append(order, n)
	}
	for n := others / 2; n < others; n++ {
		order = append(order, first+n)
	}
	if scattered {
		rng := random.New(random.NewPCG(1, 1))
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	return order
}

// put stores chunks in that order, without bytes. Each is the successor of the one
// whose number is before its own.
func put(master *embedded.Master, session embedded.Session, ns store.Namespace, order []int, shards int) error {
	for at := 0; at < len(order); at += batch {
		var items []store.PutItem
		for _, n := range order[at:min(at+batch, len(order))] {
			item := store.PutItem{Hash: hashOf(n), Depth: uint32(n & (1<<20 - 1))}
			if item.Depth > 0 {
				item.Parent = hashOf(n - 1)
			}
			for shard := range shards {
				item.Shard = uint32(shard)
				items = append(items, item)
			}
		}
		grants, err := master.PutStart(session, ns, items)
		if err != nil {
			return err
		}
		commits := make([]store.PutCommit, len(grants))
		for i := range grants {
			if grants[i].Status != store.PutGranted {
				return fmt.Errorf("chunk %d of %d: status %d", at+i/shards, len(order), grants[i].Status)
			}
			commits[i].Ticket = grants[i].Ticket
		}
		if _, err := master.PutEnd(session, commits); err != nil {
			return err
		}
	}
	return nil
}
