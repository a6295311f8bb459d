package embedded

import "testing"

// TestSoiledUntilClean: a master that adopts a segment knows whether the last reset
// has come through in the cluster.
func TestSoiledUntilClean(t *testing.T) {
	w := newClusterWorld(t, false)
	digest := w.m.namespaces[w.ns.ID].digest
	adopt := func(want bool) {
		t.Helper()
		w.crash()
		c := newFakeCluster()
		c.objects, c.left = w.c.objects, w.c.left
		w.c = c
		w.m.SetCluster(c, false)
		if soiled, opened := c.soiled[digest]; !opened || soiled != want {
			t.Errorf("soiled %v, want %v", soiled, want)
		}
	}
	adopt(false)
	for range 2 {
		if err := w.m.Reset(w.ns.ID); err != nil {
			t.Fatal(err)
		}
		w.m.Tick() // the fake has left it
		adopt(true)
		w.m.Tick()
		adopt(true)
		w.c.soiled[digest], w.c.left[digest] = false, false
		w.m.Tick()
		adopt(false)
		w.c.left[digest] = true // what came late is to be removed
		w.m.Tick()
		adopt(true)
		w.c.soiled[digest], w.c.left[digest] = false, false
		w.m.Tick()
	}
	adopt(false)
}
