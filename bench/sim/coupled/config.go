package coupled

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mooncake-sidecar/sidecar/bench/sim/model"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// Discipline is what an engine does first.
type Discipline string

// Disciplines.
const (
	// PrefillFirst runs a waiting prompt, alone, before the next decode iteration.
	PrefillFirst Discipline = "prefill-first"
	// DecodeFirst takes prompts only when nothing decodes any more.
	DecodeFirst Discipline = "decode-first"
	// Chunked lets every iteration carry a chunk of a prompt.
	Chunked Discipline = "chunked"
)

// Disciplines returns them all.
func Disciplines() []Discipline { return []Discipline{PrefillFirst, DecodeFirst, Chunked} }

// Config is a cluster of engines, each of which gets the next request when it has
// the fewest.
type Config struct {
	Nodes      int
	Discipline Discipline
	// ChunkTokens is what Chunked prefills in an iteration.
	ChunkTokens int
	// CacheBlocks is each engine's prefix cache, 0 for none.
	CacheBlocks int
	Costs       model.Costs
}

// Default is an engine as the papers compare with: no prefix cache.
func Default(nodes int) Config {
	return Config{Nodes: nodes, Discipline: PrefillFirst, ChunkTokens: 2048, Costs: model.Default()}
}

// policy of the prefix caches.
const policy = evict.NameLRU

// ErrConfig: there is no such cluster.
var ErrConfig = errors.New("coupled configuration")

const maxNodes = 4096

func (c *Config) validate() error {
	if c.Nodes < 1 || c.Nodes > maxNodes || c.CacheBlocks < 0 || c.Discipline == Chunked && c.ChunkTokens < 1 || !slices.Contains(Disciplines(), c.Discipline) {
		return fmt.Errorf("%w: %d nodes (1 to %d), discipline %q (one of %v), chunks of %d tokens, %d blocks of cache",
			ErrConfig, c.Nodes, maxNodes, c.Discipline, Disciplines(), c.ChunkTokens, c.CacheBlocks)
	}
	return nil
}
