package cudadev

import (
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/worker"
)

// Stats are counts since the start; what is named "now" goes up and down.
type Stats struct {
	// Stores and Loads are copies, by the engine's direction.
	Stores, Loads [Ways]Flow
	// MappedBytes of engines' memory are mapped now.
	MappedBytes int64
	// StoreBytes is the store's memory that a GPU is to reach now, RegisteredBytes
	// what it reaches. UnregisteredBytes it can't: the driver has refused them to this
	// context.
	StoreBytes, RegisteredBytes, UnregisteredBytes int64
	// BufferedBytes were copied by way of the buffer.
	BufferedBytes int64
	// Waits are batches that found the engine's event not there yet, and Waited is
	// how long they looked at it.
	Waits  int64
	Waited time.Duration
	// Fenced are batches that were given up with work at the GPU, and told after that.
	Fenced int64
	// Refused are registrations that came to nothing, Failed batches that did and were
	// not given up.
	Refused, Failed int64
	// Lost: the context is of no use any more, and the process is to end.
	Lost bool
}

// Ways is how many there are, the unmeasured included.
const Ways = int(ByEngine) + 1

// Flow is what goes one way.
type Flow struct {
	Launches, Bytes int64
	// Caches are the mapped KV caches that are copied this way now.
	Caches int64
}

type flow struct{ launches, bytes, caches atomic.Int64 }

type counters struct {
	flows                                       [2][Ways]flow // of stores and of loads
	mapped, registered, unregistered, buffered  atomic.Int64
	waits, waitedNanos, fenced, refused, failed atomic.Int64
	lost                                        atomic.Bool
}

// of returns a direction's and way's.
func (c *counters) of(direction worker.Direction, way Way) *flow {
	return &c.flows[direction-worker.Store][way]
}

// Stats returns the counts.
func (d *Device) Stats() Stats {
	c := &d.stats
	s := Stats{
		MappedBytes: c.mapped.Load(), StoreBytes: d.pool.bytes(), RegisteredBytes: c.registered.Load(),
		UnregisteredBytes: c.unregistered.Load(), BufferedBytes: c.buffered.Load(), Waits: c.waits.Load(),
		Waited: time.Duration(c.waitedNanos.Load()), Fenced: c.fenced.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(), Lost: c.lost.Load(),
	}
	for way := range Ways {
		for direction, to := range map[worker.Direction]*Flow{worker.Store: &s.Stores[way], worker.Load: &s.Loads[way]} {
			from := c.of(direction, Way(way))
			*to = Flow{Launches: from.launches.Load(), Bytes: from.bytes.Load(), Caches: from.caches.Load()}
		}
	}
	return s
}
