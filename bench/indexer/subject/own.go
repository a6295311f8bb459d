package subject

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// Own is this project's index behind its decoder.
type Own struct {
	// BlockTokens of all events.
	BlockTokens int

	index   *prefixindex.Index
	threads int
	sources map[int]*prefixindex.Source // by engine
	prompts [][]byte
	matches []prefixindex.Match
}

var _ Indexer = (*Own)(nil)

// Reset implements Indexer.
func (o *Own) Reset(threads int) error {
	o.index, o.threads, o.sources = prefixindex.New(prefixindex.Options{Seed: 1}), threads, map[int]*prefixindex.Source{}
	return nil
}

// Store implements Indexer. Engines are divided among the threads.
func (o *Own) Store(batches []workload.Batch) error {
	for _, b := range batches {
		if o.sources[b.Engine] == nil {
			o.sources[b.Engine] = o.index.Open(prefixindex.Origin{Model: workload.Model, Instance: strconv.Itoa(b.Engine)})
		}
	}
	var all sync.WaitGroup
	failed := make([]error, o.threads)
	for thread := range o.threads {
		all.Go(func() {
			d := kvevents.NewDecoder()
			for _, b := range batches {
				if b.Engine%o.threads != thread {
					continue
				}
				batch, refused, err := d.Decode(b.Payload)
				if err != nil || refused != 0 {
					failed[thread] = fmt.Errorf("%d events refused: %w", refused, err)
					return
				}
				o.sources[b.Engine].Apply(batch)
			}
		})
	}
	all.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// Prepare implements Indexer.
func (o *Own) Prepare(tokens []uint32) {
	o.prompts = append(o.prompts, workload.LittleEndian(tokens))
}

// Ask implements Indexer.
func (o *Own) Ask(prompt int) (engines, blocks int, err error) {
	if prompt >= len(o.prompts) {
		return 0, 0, fmt.Errorf("no prompt %d", prompt)
	}
	q := &prefixindex.Query{Model: workload.Model, BlockTokens: o.BlockTokens, Tokens: o.prompts[prompt]}
	o.matches = o.index.Query(q, o.matches[:0])
	for _, m := range o.matches {
		if held := m.In[prefixindex.GPU] / o.BlockTokens; engines == 0 || held < blocks {
			blocks = held
		}
		engines++
	}
	return engines, blocks, nil
}
