package embedded

import (
	"testing"
	"testing/synctest"

	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// TestQuotaReachesWhatIsOnItsWayDown: chunks that wait in line to be dropped, which
// the policy does not know, count for their owner, and go for its quota.
func TestQuotaReachesWhatIsOnItsWayDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDiskWorld(t, 16<<20, &disktest.Dir{}, smallDisk())
		s := d.open(1, 1, 100, Declaration{})
		ns := d.namespace(testSpec("m", 64<<10, 1))
		for i := range 250 {
			d.store(s, ns, i, 0)
			synctest.Wait()
		}
		if len(d.m.lower.moves) == 0 {
			t.Fatal("no chunk is on its way down")
		}
		if err := d.m.SetQuota(Owner{Namespace: ns.ID}, 64<<10); err != nil {
			t.Fatal(err)
		}
		for d.m.Tick() {
		}
		if st := d.m.Stats(); st.Chunks != 1 {
			t.Errorf("%d chunks are left, want 1", st.Chunks)
		}
		d.m.validate(t)
		d.unmount()
	})
}
