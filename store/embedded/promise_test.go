package embedded

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// TestNothingIsPromisedBeforeAdoption: while what clients of before hold is not
// known, nothing is brought, so nothing of the cluster is promised.
func TestNothingIsPromisedBeforeAdoption(t *testing.T) {
	w := newClusterWorld(t, false)
	w.alive[100] = true
	w.crash()
	w.m.SetCluster(w.c, false)
	if w.m.Stats().Undeclared == 0 {
		t.Fatal("nobody is waited for")
	}
	w.c.known[disk.Key{Namespace: w.m.namespaces[w.ns.ID].digest, Hash: testHash(1)}] = kv.Present
	if e, _ := w.view(1); e != kv.Absent {
		t.Errorf("it is %s", e)
	}
	w.s = w.open(1, 2, 100, Declaration{})
	if e, _ := w.view(1); e != kv.Present {
		t.Errorf("it is %s when all have declared", e)
	}
}

// TestPartIsNotPromised: of a chunk that is being stored here nothing is brought.
func TestPartIsNotPromised(t *testing.T) {
	w := newClusterWorld(t, false)
	w.c.known[disk.Key{Namespace: w.m.namespaces[w.ns.ID].digest, Hash: testHash(1)}] = kv.Present
	w.store(w.s, w.ns, 1, 0)
	if e, _ := w.view(1); e != kv.Absent {
		t.Errorf("with a part here it is %s", e)
	}
}
