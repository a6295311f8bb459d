package disk_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// follow reads the feed as a publisher does: when changes are lost it starts over.
func (f *reader) follow() (startedOver bool) {
	changes, complete := f.tier.Changes(nil, f.after, 1<<20)
	if !complete {
		f.walk()
		return true
	}
	for i := range changes {
		f.after = changes[i].Seq
	}
	f.apply(changes)
	return false
}

// failing runs a tier with a reader over a file of six regions, of which the newest
// two are read and the others can't be: the look through it fails half way. held is
// called when all but those that fail are in the catalog.
func failing(t *testing.T, dir *disktest.Dir, held func(*tier)) (*tier, *reader, []disk.Key) {
	t.Helper()
	const chunks = 18 // three a region
	r := start(t, dir, testOptions())
	var keys []disk.Key
	for i := range chunks {
		r.mustPut(i, 1, 2<<20)
		keys = append(keys, keyFor(i))
	}
	r.end()
	opts := testOptions()
	opts.Readers = 1
	hold := make(chan struct{})
	dir.SetFault(func(c disktest.Call) disktest.Fault {
		fault := unreadable(c, 4, false)
		if fault.Err != nil {
			<-hold
		}
		return fault
	})
	inner, err := disk.New(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	inner.WakeOnChange(make(chan struct{}, 1))
	r = &tier{Tier: inner, t: t, done: make(chan error, 1)}
	go func() { r.done <- inner.Run(t.Context()) }()
	synctest.Wait()
	feed := &reader{t: t, tier: inner, there: map[disk.Key]int{}}
	if feed.follow(); len(feed.there) != 6 {
		t.Fatalf("%d chunks are told of, of two regions", len(feed.there))
	}
	held(r)
	close(hold)
	time.Sleep(time.Minute)
	if r.Stats().InService && r.Stats().Chunks > 0 {
		t.Fatal("a disk that fails is in service")
	}
	return r, feed, keys
}

func heal(t *testing.T, dir *disktest.Dir, r *tier) {
	t.Helper()
	dir.SetFault(nil)
	time.Sleep(5 * time.Minute)
	if !r.Stats().InService {
		t.Fatal("the disk is not in service again")
	}
}

// A look through the file that fails and begins anew takes back what it told.
func TestFeedOfAScanThatBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r, feed, keys := failing(t, dir, func(*tier) {})
		heal(t, dir, r)
		if !feed.follow() {
			t.Error("the reader is not told that what it knows does not hold")
		}
		feed.compare(keys)
		walked := &reader{t: t, tier: r.Tier, there: map[disk.Key]int{}}
		walked.walk()
		walked.compare(keys)
		if len(feed.there) != len(keys) {
			t.Errorf("%d chunks are told of, %d are there", len(feed.there), len(keys))
		}
		if feed.follow() { // once is enough
			t.Error("the reader is to start over again")
		}
	})
}

// A file that is made anew counts its removals from 0: resets of the one before hide
// nothing of it.
func TestFeedOfAFileThatIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := &disktest.Dir{}
		r, feed, keys := failing(t, dir, func(r *tier) {
			r.Reset(keyFor(0).Namespace)
			synctest.Wait()
		})
		dir.Data(func(data []byte) []byte {
			clear(data[:disk.PageBytes])
			return data
		})
		heal(t, dir, r)
		for i := range 3 {
			r.mustPut(i, 1, 4096)
		}
		feed.follow()
		feed.compare(keys)
		if len(feed.there) != 3 {
			t.Errorf("%d chunks are told of, 3 are there", len(feed.there))
		}
	})
}
