// Command llmd measures github.com/llm-d/llm-d-kv-cache: a subject, see package subject.
//
// Events go through the library's own pool of workers, as its subscribers hand them over,
// into its index in memory, questions to Indexer.ScoreTokens, with its defaults all over.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache/kvblock"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents/engineadapter"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/subject"
	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

func main() {
	log.SetLogger(logr.Discard()) // without, it is asked for one again and again
	if err := subject.Serve(os.Stdin, os.Stdout, &llmd{}); err != nil {
		fmt.Fprintln(os.Stderr, "llmd:", err) // whoever waits for an answer sees that there is none
	}
}

// llmd is the library as an embedding program uses it.
type llmd struct {
	processor kvblock.TokenProcessor
	indexer   *kvcache.Indexer
	threads   int
	prompts   [][]uint32
}

// Reset implements subject.Indexer.
func (l *llmd) Reset(threads int) error {
	config, err := kvcache.NewDefaultConfig()
	if err != nil {
		return fmt.Errorf("configuring the indexer: %w", err)
	}
	if l.processor, err = kvblock.NewChunkedTokenDatabase(kvblock.DefaultTokenProcessorConfig()); err != nil {
		return fmt.Errorf("making a token processor: %w", err)
	}
	if l.indexer, err = kvcache.NewKVCacheIndexer(context.Background(), config, l.processor); err != nil {
		return fmt.Errorf("making an indexer: %w", err)
	}
	l.threads = threads
	return nil
}

// Store implements subject.Indexer. A pool that is shut down first does what it was given.
func (l *llmd) Store(batches []workload.Batch) error {
	ctx := context.Background()
	config := kvevents.DefaultConfig()
	config.Concurrency = l.threads
	pool := kvevents.NewPool(config, l.indexer.KVBlockIndex(), l.processor, engineadapter.NewVLLMAdapter())
	for i, b := range batches {
		pool.AddTask(&kvevents.RawMessage{Topic: "kv@" + strconv.Itoa(b.Engine) + "@" + workload.Model, Sequence: uint64(i), Payload: b.Payload})
	}
	pool.Start(ctx)
	pool.Shutdown(ctx)
	return nil
}

// Prepare implements subject.Indexer.
func (l *llmd) Prepare(tokens []uint32) { l.prompts = append(l.prompts, tokens) }

// Ask implements subject.Indexer. A block in GPU memory scores one.
func (l *llmd) Ask(prompt int) (engines, blocks int, err error) {
	if prompt >= len(l.prompts) {
		return 0, 0, fmt.Errorf("no prompt %d", prompt)
	}
	scores, err := l.indexer.ScoreTokens(context.Background(), l.prompts[prompt], workload.Model, nil, nil)
	if err != nil {
		return 0, 0, fmt.Errorf("scoring: %w", err)
	}
	for _, score := range scores {
		if held := int(score); engines == 0 || held < blocks {
			blocks = held
		}
		engines++
	}
	return engines, blocks, nil
}
