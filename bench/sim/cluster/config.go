package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/internal/index"
)

// Config is a cluster.
type Config struct {
	// Prefill and Decode are numbers of nodes. Without decode nodes a request is done
	// with its first token.
	Prefill, Decode int
	// CacheBlocks is each prefill node's room, Policy what makes room in it. Pooled
	// nodes share one cache of all their room, without transfers; what is still being
	// computed when a request comes is no hit there.
	CacheBlocks int
	Policy      string
	Pooled      bool
	Costs       model.Costs
	Scheduler   scheduler.Options
	// TTFT and TBT are the objectives that the scheduler knows, 0 for none.
	TTFT, TBT time.Duration
	// SerialHandover adds the transfer of the whole prompt's KV cache to the decode
	// node to the time to the first token. Otherwise it goes layer by layer beside
	// the prefill.
	SerialHandover bool
	// EstimateError is the standard deviation of the logarithm of estimated times over
	// the real ones. 0: estimates are exact.
	EstimateError float64
	// Replication copies hot prefixes ahead of need. The zero value does not.
	Replication scheduler.ReplicationOptions
	// DecodeBlocks is each decode node's prefix cache: what it holds of a prompt need
	// not be handed over. 0: none.
	DecodeBlocks int
	// Seed is for all that is random.
	Seed uint64
	// Sample is how often the load is looked at; 0 for never.
	Sample time.Duration
}

// NodeBlocks is the cache of a node: 3 million tokens, what 1 TB of memory holds.
const NodeBlocks = 5859

// Default is the papers' cluster of 16 nodes.
func Default() Config {
	return Config{
		Prefill: 8, Decode: 8, CacheBlocks: NodeBlocks, Policy: evict.NameLRU, Costs: model.Default(), Scheduler: scheduler.Default(),
	}
}

// ErrConfig: there is no such cluster.
var ErrConfig = errors.New("cluster configuration")

// limits keep a mistyped number from taking all memory.
const (
	maxNodes  = 4096
	maxFactor = 1e3
)

// Validate returns all faults.
func (c *Config) Validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
		}
	}
	fault(c.Prefill < 1 || c.Prefill > maxNodes, "%d prefill nodes; want 1 to %d", c.Prefill, maxNodes)
	fault(c.Decode < 0 || c.Decode > maxNodes, "%d decode nodes; want 0 to %d", c.Decode, maxNodes)
	fault(c.CacheBlocks < 1 || c.roomBlocks() > index.MaxCapacity, "%d blocks of cache; want 1 to %d in a cache", c.CacheBlocks, index.MaxCapacity)
	fault(!evict.Known(c.Policy), "no eviction policy %q; want one of %v", c.Policy, evict.Names())
	fault(!(c.Costs.ServiceFactor > 0) || !(c.Costs.LinkBytesPerSecond > 0), "service factor %v, %v bytes a second; want more than 0", c.Costs.ServiceFactor, c.Costs.LinkBytesPerSecond)
	fault(c.Costs.ServiceFactor > maxFactor, "service factor %v; want at most %g", c.Costs.ServiceFactor, float64(maxFactor))
	fault(!(c.Costs.DecodeSequenceSeconds >= 0 && c.Costs.DecodeSequenceSeconds <= maxFactor), "%v s a sequence in a decode iteration; want 0 to %g", c.Costs.DecodeSequenceSeconds, float64(maxFactor))
	fault(c.DecodeBlocks < 0 || c.DecodeBlocks > index.MaxCapacity, "%d blocks of cache on a decode node; want 0 to %d", c.DecodeBlocks, index.MaxCapacity)
	fault(c.Scheduler.Patience > 0 && c.Pooled, "patience %v; want 0 with a pooled cache", c.Scheduler.Patience)
	fault(c.TTFT < 0 || c.TBT < 0 || c.Sample < 0, "objectives and intervals are not negative")
	fault(!(c.EstimateError >= 0), "estimate error %v; want 0 or more", c.EstimateError)
	faults = append(faults, c.Scheduler.Validate(), c.Replication.Validate())
	return errors.Join(faults...)
}

func (c *Config) roomBlocks() int {
	if c.Pooled {
		return c.CacheBlocks * c.Prefill
	}
	return c.CacheBlocks
}
