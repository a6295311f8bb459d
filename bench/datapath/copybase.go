package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/hugepage"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
)

// readyMemory returns memory as an engine's KV cache and the store's segments
// are: there before it is used, on huge pages where there are any.
func readyMemory(name string, bytes uint64) (*shm.Segment, error) {
	m, err := shm.NewSegment(name, bytes)
	if err != nil {
		return nil, err
	}
	// Each huge page needs a page to begin with.
	for at := uint64(0); at < bytes; at += hugepage.Bytes {
		m.Bytes()[at] = 0
	}
	// Else it is on small ones, which come with their use.
	_ = errors.Join(m.Collapse(0, bytes), m.Populate(0, bytes))
	return m, nil
}

// copies is the yardstick: one thread copies the same pieces between the engine's
// blocks and memory in which shards lie as in the store.
type copies struct {
	e      *engine
	shards *shm.Segment
}

func newCopies(e *engine) (*copies, error) {
	shards, err := readyMemory("datapath-shards", uint64(e.g.bytes()))
	if err != nil {
		return nil, err
	}
	c := &copies{e: e, shards: shards}
	c.out(0) // every page is there before the first measurement
	return c, nil
}

func (c *copies) close() { _ = c.shards.Close() }

// out copies from the blocks of an area, as a store does.
func (c *copies) out(area int) time.Duration { return c.copy(area, true) }

// in copies into the blocks of an area, as a load does.
func (c *copies) in(area int) time.Duration { return c.copy(area, false) }

func (c *copies) copy(area int, out bool) time.Duration {
	g := c.e.g
	kv, piece, shards := c.e.kv.Bytes(), g.shardBytes()/g.Layers, c.shards.Bytes()
	layer := len(kv) / g.Layers
	begun := time.Now()
	for block := range g.blocks() {
		for l := range g.Layers {
			engine := kv[l*layer+(1+area*g.blocks()+block)*piece:][:piece]
			store := shards[block*g.shardBytes()+l*piece:][:piece]
			if out {
				copy(store, engine)
			} else {
				copy(engine, store)
			}
		}
	}
	return time.Since(begun)
}

// caches puts what was measured before out of the processor's caches: else the
// copy right behind a store would find the store's source there.
type caches struct {
	other []byte
	sum   byte // so that the bytes are read
}

// newCaches makes room for twice the largest cache.
func newCaches() *caches {
	const usual = 32 << 20 // where the system does not say
	largest := usual
	names, _ := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*/size") // the pattern is good
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(string(text)), "K")); err == nil {
			largest = max(largest, kib<<10)
		}
	}
	c := &caches{other: make([]byte, 2*largest)}
	for at := range c.other {
		c.other[at] = 1 // else all of it is the one page of zeros
	}
	return c
}

// empty fills them with something else, which need not be written back.
func (c *caches) empty() {
	const line = 64
	for at := 0; at < len(c.other); at += line {
		c.sum += c.other[at]
	}
}
