package indexer

import (
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// kept counts the snapshots that Run writes. It is safe for concurrent use.
type kept struct {
	began time.Time // of the process, never written again

	mu              sync.Mutex // guards all below
	last            time.Time
	written, failed uint64
}

// note takes account of a snapshot.
func (k *kept) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.failed++
		return
	}
	k.written++
	k.last = time.Now()
}

// stats are those of an index that is kept so.
func (k *kept) stats(how *Keeping) contract.Snapshots {
	if how.Dir == "" {
		return contract.Snapshots{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	last := k.last
	if k.written == 0 {
		last = k.began
	}
	return contract.Snapshots{Interval: how.Interval, Age: time.Since(last), Written: k.written, Failed: k.failed}
}
