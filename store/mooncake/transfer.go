package mooncake

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// maxPutBytes and MaxGetBytes bound what one call of the engine transfers, so that
// it ends within the engine's time limit on a slow network.
const (
	maxPutBytes = 64 << 20
	MaxGetBytes = 256 << 20
)

// Shard is one shard of a chunk, and the memory that its bytes are in, or go to.
type Shard struct {
	Group, Shard uint32
	Hash         kv.Hash
	At           Range
	// Sum is the CRC-32C of the bytes.
	Sum uint32
}

// PutResult is what became of a shard that was to be put.
type PutResult uint8

// The results.
const (
	// PutFailed: it is not known to be there.
	PutFailed PutResult = iota
	// PutStored: it is there, now or since before.
	PutStored
	// PutNoRoom: the cluster had none.
	PutNoRoom
	// PutChanged: its bytes were not those of its sum, and were not put.
	PutChanged
	// PutDenied: the namespace was reset, or what is to be removed is not yet.
	PutDenied
)

// Put stores shards that have their sums, in as many calls as it takes. A shard's
// failure is its own; with an error the rest has failed.
//
// INVARIANT: when it returns, nobody reads the ranges any more.
//
// REQUIRES: the namespace has the shards, no shard is there twice, and nobody
// writes the ranges meanwhile.
func (c *Client) Put(ctx context.Context, n store.Namespace, pin store.Pin, shards []Shard) ([]PutResult, error) {
	results := make([]PutResult, len(shards))
	if !c.enter() {
		return results, fmt.Errorf("put: %w", errClosed)
	}
	defer c.calls.Done()
	how := c.cfg.Replication
	switch pin {
	case store.PinNone:
	case store.PinSoft:
		how.SoftPin = true
	case store.PinHard:
		how.HardPin = true
	}
	for from := 0; from < len(shards); {
		to := batchEnd(shards, from, maxPutBytes)
		err := c.reach(ctx)
		if err == nil {
			err = c.putBatch(ctx, n, how, shards[from:to], results[from:to])
		}
		if err != nil {
			return results, fmt.Errorf("put: %w", err)
		}
		from = to
	}
	return results, nil
}

// Full tells whether the cluster had no room just now.
func (c *Client) Full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.Now().Before(c.fullUntil)
}

// enter counts a call, unless the client is closed.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.calls.Add(1)
	}
	return !c.closed
}

// batchEnd returns where the call of at most so many bytes ends that begins with a
// shard.
func batchEnd(shards []Shard, from int, most uint64) int {
	bytes := uint64(0)
	for to := from; to < len(shards); to++ {
		if bytes += shards[to].At.Bytes; to-from == MaxTransfer || to > from && bytes > most {
			return to
		}
	}
	return len(shards)
}

// putBatch makes one call of the engine.
func (c *Client) putBatch(ctx context.Context, n store.Namespace, how Replication, shards []Shard, results []PutResult) error {
	objects, at, err := c.puttable(n, shards, results)
	if err != nil || len(objects) == 0 {
		return err
	}
	answers, err := c.cfg.Engine.Put(ctx, how, objects)
	c.mu.Lock()
	err = c.noteLocked("put", answers, err)
	ns, stale := c.currentLocked(n)
	late := &doomed{ns: ns}
	for k := range objects {
		if stale != nil && ns != nil { // answered or not, it may be there
			s := &shards[at[k]]
			late.keys, late.chunks = append(late.keys, objects[k].Key), append(late.chunks, chunk{ns.id, s.Group, s.Hash})
		}
		if k >= len(answers) {
			continue
		}
		switch {
		case stale != nil:
			results[at[k]] = PutDenied
		case answers[k] >= 0:
			results[at[k]] = PutStored
			ns.seen.note(objects[k].Key)
			c.stats.Puts++
			c.stats.PutBytes += objects[k].Range.Bytes
		case answers[k].Code() == CodeNoSpace:
			results[at[k]] = PutNoRoom
			c.fullUntil = c.cfg.Now().Add(fullPause)
		}
	}
	c.mu.Unlock()
	if len(late.keys) == 0 {
		return err
	}
	// A reset came in between: what was stored after it goes, too, whoever waits.
	if _, removing := c.remove(context.WithoutCancel(ctx), late); removing != nil {
		c.cfg.Log.Warn("chunks that were stored during a reset could not be removed yet", "chunks", len(late.keys), "error", removing)
	}
	return err
}

// puttable returns the objects of the shards that may be put, and which they are.
// The bytes are summed again: an object has no checksum with it, so that nobody
// would see that they are others.
func (c *Client) puttable(n store.Namespace, shards []Shard, results []PutResult) (objects []Object, at []int, err error) {
	c.mu.Lock()
	ns, err := c.currentLocked(n)
	for i := range shards {
		if err != nil {
			break
		}
		s := &shards[i]
		if key := ns.key(s.Group, s.Shard, &s.Hash); c.deniedLocked(ns, s.Group, &s.Hash, key) {
			results[i] = PutDenied
		} else {
			objects, at = append(objects, Object{Key: key, Range: s.At}), append(at, i)
		}
	}
	c.mu.Unlock()
	castagnoli, left := crc32.MakeTable(crc32.Castagnoli), 0
	for k, o := range objects {
		if crc32.Checksum(c.cfg.Memory[o.Range.Offset:][:o.Range.Bytes], castagnoli) == shards[at[k]].Sum {
			objects[left], at[left] = o, at[k]
			left++
			continue
		}
		c.cfg.Log.Error("a shard changed between its checksum and its put; it is not stored", "key", o.Key)
		results[at[k]] = PutChanged
		c.mu.Lock()
		c.stats.PutsChanged++
		c.mu.Unlock()
	}
	return objects[:left], at[:left], err
}

// Get reads shards whole into their ranges, in as many calls as it takes, and
// returns which arrived; their sums are set. A reset meanwhile is an error.
//
// INVARIANT: when it returns, nobody writes the ranges any more.
//
// REQUIRES: the namespace has the shards, and no shard is there twice.
func (c *Client) Get(ctx context.Context, n store.Namespace, shards []Shard) (whole []bool, err error) {
	whole = make([]bool, len(shards))
	if !c.enter() {
		return whole, fmt.Errorf("get: %w", errClosed)
	}
	defer c.calls.Done()
	for from := 0; from < len(shards) && err == nil; {
		to := batchEnd(shards, from, MaxGetBytes)
		if err = c.reach(ctx); err == nil {
			err = c.getBatch(ctx, n, shards[from:to], whole[from:to])
		}
		from = to
	}
	if err != nil {
		return whole, fmt.Errorf("get: %w", err)
	}
	return whole, nil
}

const (
	// sumShare is how many bytes are worth another goroutine's start.
	sumShare = 4 << 20
	// sumCores sum the bytes of one call.
	sumCores = 2
)

// sumWhole sums the shards of the objects that arrived whole in memory; those of object
// k are shards[at[k]]. A load waits for it, and the call's own threads are done: of much
// a second core sums half.
func sumWhole(memory []byte, objects []Object, answers []Answer, shards []Shard, at []int) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	bytes := uint64(0)
	for k := range objects {
		bytes += objects[k].Range.Bytes
	}
	parts := min(1+int(bytes/sumShare), sumCores, max(len(objects), 1))
	var others sync.WaitGroup
	for part := parts - 1; part >= 0; part-- { // the first is for who calls
		some := func() {
			for k := part; k < min(len(answers), len(objects)); k += parts {
				if r := objects[k].Range; answers[k] == Answer(r.Bytes) {
					shards[at[k]].Sum = crc32.Checksum(memory[r.Offset:][:r.Bytes], castagnoli)
				}
			}
		}
		if part > 0 {
			others.Go(some)
		} else {
			some()
		}
	}
	others.Wait()
}

// getBatch makes one call of the engine.
func (c *Client) getBatch(ctx context.Context, n store.Namespace, shards []Shard, whole []bool) error {
	objects := make([]Object, 0, len(shards))
	var at []int
	c.mu.Lock()
	ns, err := c.currentLocked(n)
	for i := range shards {
		if err != nil {
			break
		}
		s := &shards[i]
		if key := ns.key(s.Group, s.Shard, &s.Hash); !c.deniedLocked(ns, s.Group, &s.Hash, key) {
			objects, at = append(objects, Object{Key: key, Range: s.At}), append(at, i)
		}
	}
	c.mu.Unlock()
	if err != nil || len(objects) == 0 {
		return err
	}
	answers, err := c.cfg.Engine.Get(ctx, objects)
	if err == nil && allGone(answers) {
		// The master, or the nodes that have these objects on their disks.
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeLimit)
		err = c.askNothing(limited)
		cancel()
		if errors.Is(err, ErrNoTurn) {
			err = nil // misses, all the same
		}
	}
	if err == nil {
		sumWhole(c.cfg.Memory, objects, answers, shards, at)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leasedLocked(n)
	if err = c.noteLocked("get", answers, err); err != nil {
		return err
	}
	if _, err = c.currentLocked(n); err != nil {
		return err // what a reset has removed meanwhile is not given out
	}
	for k, a := range answers {
		switch r, s := objects[k].Range, &shards[at[k]]; {
		case a == Answer(r.Bytes) && !c.deniedLocked(ns, s.Group, &s.Hash, objects[k].Key):
			whole[at[k]] = true
			ns.seen.note(objects[k].Key)
			c.stats.GetBytes += r.Bytes
		case a >= 0 && a != Answer(r.Bytes), a.Code() == CodeInvalidParams:
			c.stats.GetsOtherLength++
		}
	}
	return nil
}
