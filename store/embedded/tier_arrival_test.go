package embedded

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
)

// A chunk that comes from the disk while a load is being answered, after the load
// has looked in memory and before it asks the disk, is not absent.
func TestAChunkThatArrivesDuringAGetIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, ns := prefetchWorld(t)
		d.slowReads(100 * time.Millisecond)
		const chunk = 0 // the first stored, long out of memory
		if d.inMemory(ns, chunk, 1) != 0 {
			t.Fatal("the chunk is in memory")
		}
		holder := store.Lease{Engine: "engine", Request: fmt.Sprint(chunk)}
		get := func() store.GetStatus {
			t.Helper()
			d.now = time.Now()
			results, err := d.m.Get(s, ns, holder, []store.GetItem{{Hash: testHash(chunk)}})
			if err != nil {
				t.Fatal(err)
			}
			return results[0].Status
		}
		if got := get(); got != store.GetLoading {
			t.Fatalf("the chunk is %v at first", got)
		}
		steps, arrived := defaultSteps(), false
		steps.between = func() {
			time.Sleep(time.Second)
			arrived = d.inMemory(ns, chunk, 1) == 1
		}
		d.walk(steps)
		got := get()
		d.walk(defaultSteps())
		if !arrived || got != store.GetReady {
			t.Errorf("arrived: %t; the load was told %v", arrived, got)
		}
		d.m.validate(t)
		d.unmount()
	})
}
