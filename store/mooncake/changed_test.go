package mooncake_test

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// TestChangedPut: bytes that are not those that were written are stored nowhere,
// and those beside them are.
func TestChangedPut(t *testing.T) {
	r := newRig(t, mooncaketest.NewCluster(0), mooncake.Options{})
	grants, err := r.start(1)
	if err != nil {
		t.Fatal(err)
	}
	for shard, g := range grants {
		copy(r.memory[g.Place.Offset:], shardOf(1, uint32(shard)))
	}
	commits := []store.PutCommit{r.commit(grants[0]), r.commit(grants[1])}
	r.memory[grants[0].Place.Offset+7] ^= 1
	done, err := r.PutEnd(t.Context(), r.ns, commits)
	if err != nil || done[0] || !done[1] {
		t.Errorf("%v, %v; want the second", done, err)
	}
	if keys, stats := r.cluster.Keys(), r.Stats(); len(keys) != 1 || stats.PutsChanged != 1 || stats.PutsFailed != 1 {
		t.Errorf("%q are stored, %+v", keys, stats)
	}
	if _, err := r.put(1); err != nil { // the other shard is there
		t.Error(err)
	}
	r.expect(1, true)
	r.settled()
}
