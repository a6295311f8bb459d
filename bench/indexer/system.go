package indexer

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// System is an indexer that is measured. One goroutine uses it.
type System interface {
	Name() string
	// Load starts anew with nothing, and stores a workload.
	Load(ctx context.Context, load workload.Options, threads int) (Loaded, error)
	// Prompt stores a prompt for its holders, and prepares to ask for it. Prompts are
	// numbered from 0 on; a load forgets them.
	Prompt(ctx context.Context, p Prompt) error
	// Forms are the ways in which a prompt can be asked for.
	Forms() []string
	// Ask asks for a prompt so many times.
	Ask(ctx context.Context, prompt int, form string, times int) (Asked, error)
	// Close ends what was started.
	Close() error
}

// Loaded is what a load took.
type Loaded struct {
	Blocks int           `json:"blocks"`
	Took   time.Duration `json:"took_ns"`
	// CPU is what the indexer's process used.
	CPU time.Duration `json:"cpu_ns"`
	// Sender is what the process that sends used meanwhile, 0 where nothing is sent.
	Sender time.Duration `json:"sender_ns,omitempty"`
	// Bytes more in use than before.
	Bytes int64 `json:"bytes"`
}

// Prompt is one that is asked for.
type Prompt struct {
	Number          uint32
	Tokens, Holders int
}

// Asked is how a question was answered.
type Asked struct {
	// Each is the time of each question, from the call to the answer.
	Each []time.Duration
	// CPU is what the indexer's process used for all of them.
	CPU time.Duration
	// Engines that hold something of the prompt, and the fewest blocks that one has.
	Engines, Blocks int
}
