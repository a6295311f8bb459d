package indexer

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// How old the snapshot is, and how many could not be written.
func TestSnapshotsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := newTransport(t)
		dir := filepath.Join(t.TempDir(), "snapshots")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		opts := options(transport)
		opts.Keep = Keeping{Dir: dir, Interval: time.Minute}
		x := New(opts)
		stop := run(t, x)
		time.Sleep(30 * time.Second)
		if s := x.Stats().Snapshots; s.Age != 30*time.Second || s.Interval != time.Minute || s.Written != 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(40 * time.Second)
		if s := x.Stats().Snapshots; s.Age != 10*time.Second || s.Written != 1 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := x.Stats().Snapshots; s.Age != 70*time.Second || s.Written != 1 || s.Failed != 1 {
			t.Errorf("%+v", s)
		}
		stop()
	})
	without := New(options(newTransport(t)))
	if s := without.Stats().Snapshots; s.Interval != 0 || s.Age != 0 {
		t.Errorf("%+v", s)
	}
	without.Close()
}
