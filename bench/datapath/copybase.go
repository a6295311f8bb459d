package datapath

import "time"

// copies is the yardstick: one thread copies the same pieces between the engine's
// blocks and memory in which shards lie as in the store.
type copies struct {
	e      *engine
	shards []byte
}

func newCopies(e *engine) *copies {
	c := &copies{e: e, shards: make([]byte, e.g.bytes())}
	c.out(0) // every page is there before the first measurement
	return c
}

// out copies from the blocks of an area, as a store does.
func (c *copies) out(area int) time.Duration { return c.copy(area, true) }

// in copies into the blocks of an area, as a load does.
func (c *copies) in(area int) time.Duration { return c.copy(area, false) }

func (c *copies) copy(area int, out bool) time.Duration {
	g := c.e.g
	kv, piece := c.e.kv.Bytes(), g.shardBytes()/g.Layers
	layer := len(kv) / g.Layers
	begun := time.Now()
	for block := range g.blocks() {
		for l := range g.Layers {
			engine := kv[l*layer+(1+area*g.blocks()+block)*piece:][:piece]
			store := c.shards[block*g.shardBytes()+l*piece:][:piece]
			if out {
				copy(store, engine)
			} else {
				copy(engine, store)
			}
		}
	}
	return time.Since(begun)
}
