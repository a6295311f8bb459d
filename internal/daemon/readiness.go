package daemon

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// watchStore makes the checks of a mounted store.
func (o *operations) watchStore(stats func() embedded.Stats) {
	o.ready.SetProblem(checkStore, "")
	o.ready.Set(checkMemory, func() string {
		s := stats()
		if s.CapacityBytes > 0 {
			return ""
		}
		return fmt.Sprintf("none of the store's %s is allocated yet; if this lasts, lower store_bytes or free memory", config.Size(s.SizeBytes))
	})
	o.ready.Set(checkWorkers, func() string {
		if n := stats().Undeclared; n > 0 {
			return fmt.Sprintf("%d workers of before the restart have not come back yet; nothing is stored until they have, or have ended", n)
		}
		return ""
	})
}

// watchStoreClient makes the check of a worker's way to the store.
func (o *operations) watchStoreClient(ready func() bool, dir string) {
	o.ready.Set(checkStore, func() string {
		if ready() {
			return ""
		}
		return "mooncake-lookupd can't be reached in " + dir + "; is it running there, as the same user?"
	})
}
