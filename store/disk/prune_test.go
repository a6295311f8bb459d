package disk_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

func pruning() disk.Options {
	opts := testOptions()
	opts.PruneFrom(4)
	return opts
}

// forgetOthers makes the list of removals long enough to be looked through.
func (r *tier) forgetOthers() {
	for i := range 6 {
		r.ForgetTag(nil, fmt.Sprint("nobody", i))
	}
	r.mustSettle()
}

// TestPrunedListStillRemoves: a removal is not forgotten while a region has a record
// that is older, be it of this process or of one before.
func TestPrunedListStillRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r := start(t, dir, pruning())
		r.fill(10)
		for round := range 3 {
			r.Forget(keyFor(round))
			r.forgetOthers()
			r, dir = r.killed(dir, pruning())
			for i := range 10 {
				if i <= round {
					r.mustMiss(i)
				} else {
					r.mustGet(i, 1, 4096)
				}
			}
		}
		r.end()
	})
}

// TestPrunedWhileItWaits: a removal is not forgotten while what it names waits to be
// written.
func TestPrunedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		dir := &disktest.Dir{}
		opts := pruning()
		opts.WriteDeadline = time.Hour
		r := start(t, dir, opts)
		dir.SetFault(func(c disktest.Call) disktest.Fault {
			if c.Op == disktest.Allocate { // of the first region: no record has a place yet
				<-hold
			}
			return disktest.Fault{}
		})
		written := make(chan error, 1)
		go func() { written <- r.put(1, 1, 4096) }()
		synctest.Wait()
		r.Forget(keyFor(1))
		r.forgetOthers()
		close(hold)
		if err := <-written; !errors.Is(err, disk.ErrGone) {
			t.Errorf("written after its removal: %v", err)
		}
		r.mustMiss(1)
		r.end()
	})
}
