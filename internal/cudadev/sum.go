package cudadev

import (
	"errors"
	"hash/crc32"
	"sync"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/internal/copying"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// minCoreBytes is worth waking another core for.
const minCoreBytes = 1 << 20

// sum fills the checksums of shards from their memory, on several cores at most.
func sum(batch []worker.ShardCopy, cores int) error {
	bytes := 0
	for i := range batch {
		bytes += len(batch[i].Memory)
	}
	cores = min(cores, len(batch), bytes/minCoreBytes)
	var next atomic.Int64
	work := func() error {
		return copying.Guarded(func() {
			table := crc32.MakeTable(crc32.Castagnoli) // the library's own, which the processor helps with
			for i := next.Add(1) - 1; i < int64(len(batch)); i = next.Add(1) - 1 {
				batch[i].Checksum = crc32.Checksum(batch[i].Memory, table)
			}
		})
	}
	if cores < 2 {
		return work()
	}
	errs := make([]error, cores)
	var others sync.WaitGroup
	for i := 1; i < cores; i++ {
		others.Go(func() { errs[i] = work() })
	}
	errs[0] = work()
	others.Wait()
	return errors.Join(errs...)
}
