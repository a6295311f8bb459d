package node

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/internal/index"
)

// Cache is the prefix cache of a node. Blocks are known by key; one that is to be
// computed or is on its way is resident from the decision on, and ready later.
type Cache struct {
	table  *index.Table
	policy evict.Policy
	keys   []uint64        // by record
	ready  []time.Duration // by record
	free   []uint32
	probe  uint64
	isKey  func(record uint32) bool
	noVeto func(record uint32) bool
}

// NewCache returns a cache of so many blocks with a policy of internal/evict.
//
// REQUIRES: 0 < blocks <= index.MaxCapacity.
func NewCache(policy string, blocks int) (*Cache, error) {
	p, err := evict.New(policy, blocks)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		table: index.New(blocks), policy: p, keys: make([]uint64, blocks), ready: make([]time.Duration, blocks), free: make([]uint32, blocks),
		noVeto: func(uint32) bool { return false },
	}
	c.isKey = func(record uint32) bool { return c.keys[record] == c.probe }
	for i := range c.free {
		c.free[i] = uint32(blocks - 1 - i)
	}
	return c, nil
}

func (c *Cache) find(key uint64) (uint32, bool) {
	c.probe = key
	return c.table.Find(key, c.isKey)
}

// Leading is how many of the leading blocks are resident, and how many are ready
// at a time.
func (c *Cache) Leading(keys []uint64, now time.Duration) (resident, ready int) {
	allReady := true
	for i, key := range keys {
		record, found := c.find(key)
		if !found {
			return i, ready
		}
		if allReady = allReady && c.ready[record] <= now; allReady {
			ready = i + 1
		}
	}
	return len(keys), ready
}

// Insert uses or adds blocks from the leaf to the root, as the daemon does. A
// block that is new becomes ready at its time: those before firstNew at early, the
// others at late.
func (c *Cache) Insert(keys []uint64, firstNew int, early, late time.Duration) {
	for i := len(keys) - 1; i >= 0; i-- {
		at := late
		if i < firstNew {
			at = early
		}
		c.use(keys, i, at)
	}
}

// InsertFromRoot uses or adds blocks, ready at once, from the root to the leaf.
func (c *Cache) InsertFromRoot(keys []uint64) {
	for i := range keys {
		c.use(keys, i, 0)
	}
}

// use uses one of the blocks, or adds it.
func (c *Cache) use(keys []uint64, i int, at time.Duration) {
	if record, found := c.find(keys[i]); found {
		c.policy.Touch(record)
		c.ready[record] = min(c.ready[record], at)
		return
	}
	var parent uint64
	if i > 0 {
		parent = keys[i-1]
	}
	c.add(evict.Chunk{Key: keys[i], Parent: parent, Depth: uint32(i)}, at)
}

// Touch uses leading blocks that are resident, from the leaf to the root.
func (c *Cache) Touch(keys []uint64) {
	for i := len(keys) - 1; i >= 0; i-- {
		if record, found := c.find(keys[i]); found {
			c.policy.Touch(record)
		}
	}
}

func (c *Cache) add(chunk evict.Chunk, at time.Duration) {
	if len(c.free) == 0 {
		record, ok := c.policy.Victim(c.noVeto)
		if !ok {
			panic("BUG: the policy has no victim although nothing is in use")
		}
		c.table.Remove(c.keys[record], record)
		c.free = append(c.free, record)
	}
	record := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.keys[record], c.ready[record] = chunk.Key, at
	c.table.Insert(chunk.Key, record)
	c.policy.Insert(record, chunk)
}

// Len is the number of resident blocks.
func (c *Cache) Len() int { return c.policy.Len() }
