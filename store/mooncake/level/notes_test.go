package level_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// paper are notes in memory.
type paper struct {
	mu    sync.Mutex
	notes []level.Note
	full  bool
}

var errFull = errors.New("no room")

func (p *paper) Read() ([]level.Note, error) { return p.read(), nil }

func (p *paper) read() []level.Note {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.notes)
}

func (p *paper) Add(notes []level.Note) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return errFull
	}
	p.notes = append(p.notes, notes...)
	return nil
}

func (p *paper) setFull(full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = full
}

func (p *paper) Clear(keep []level.Note) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = slices.Clone(keep)
	return nil
}

// copied is what a process finds that begins now.
func (p *paper) copied() *paper { return &paper{notes: p.read()} }

// TestRemovalsOutliveTheirProcess: what was to be removed when a daemon was killed is
// not found by the next one, and is removed.
func TestRemovalsOutliveTheirProcess(t *testing.T) {
	for name, all := range map[string]bool{"chunks": false, "a namespace": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, notes := mooncaketest.NewCluster(0), &paper{}
				killed := newRig(t, cluster, level.Options{ResetCluster: true, Notes: notes})
				for i := 1; i <= 2; i++ {
					if err, _ := killed.put(i, i); err != nil {
						t.Fatal(err)
					}
				}
				killed.engine.SetFault(func(string, []string) mooncaketest.Fault { return mooncaketest.Fault{Code: mooncake.CodeRPCFailed} })
				left := 2
				if all {
					killed.RemoveAll(killed.digest)
					left = 0
				} else if key := killed.key(1); !killed.Forget(&key) {
					t.Fatal("refused")
				}
				if err := killed.Settle(); err != nil {
					t.Fatal(err)
				}
				found := notes.copied()
				r := newRig(t, cluster, level.Options{ResetCluster: true, Notes: found})
				r.absentFor(1, 3)
				time.Sleep(30 * time.Second)
				if n := objectsIn(cluster); n != left || len(found.read()) != 0 {
					t.Errorf("%d objects and %d notes are left, want %d and none", n, len(found.read()), left)
				}
				if err := r.ask(t.Context(), 2); err != nil {
					t.Fatal(err)
				}
				r.expect(2, map[bool]kv.Existence{false: kv.Present, true: kv.Absent}[all])
				if err, taken := r.put(1, 1); err != nil || !taken {
					t.Errorf("a put after it: %v, %v", err, taken)
				}
			})
		})
	}
}

// TestNotesOfOthers: removals of a namespace that nobody has opened yet are kept until
// somebody does, whatever is through meanwhile.
func TestNotesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		before := newRig(t, cluster, level.Options{})
		before.digest = before.open("another", false)
		if err, _ := before.put(1, 1); err != nil {
			t.Fatal(err)
		}
		key := before.key(1)
		notes := &paper{notes: []level.Note{{Namespace: key.Namespace, Hash: key.Hash}}}
		r := newRig(t, cluster, level.Options{Notes: notes})
		own := r.key(7)
		r.Forget(&own)
		time.Sleep(10 * time.Second)
		if n := notes.read(); len(n) != 1 || n[0].Namespace != key.Namespace || objectsIn(cluster) != 2 {
			t.Errorf("%d notes, %d objects", len(n), objectsIn(cluster))
		}
		r.digest = r.open("another", false)
		r.absentFor(1, 1)
		time.Sleep(10 * time.Second)
		if n := notes.read(); len(n) != 0 || objectsIn(cluster) != 0 {
			t.Errorf("%d notes, %d objects", len(n), objectsIn(cluster))
		}
	})
}

// TestNoRoomForNotes: who removes is told when the note could not be written, and it
// is written when it can be, unless it is through before. Their number is bounded.
func TestNoRoomForNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notes := &paper{full: true}
		r := newRig(t, mooncaketest.NewCluster(0), level.Options{Notes: notes})
		r.engine.SetFault(func(string, []string) mooncaketest.Fault { return mooncaketest.Fault{Code: mooncake.CodeRPCFailed} })
		key := r.key(1)
		if !r.Forget(&key) {
			t.Fatal("refused")
		}
		if err := r.Settle(); !errors.Is(err, errFull) {
			t.Errorf("it is settled: %v", err)
		}
		notes.setFull(false)
		time.Sleep(time.Second)
		if n := notes.read(); len(n) != 1 || n[0].Hash != key.Hash {
			t.Errorf("%d notes", len(n))
		}
		taken := 0
		for range 1<<20 + 10 { // the same one, so that little else is needed
			if r.Forget(&disk.Key{Namespace: r.digest, Hash: key.Hash}) {
				taken++
			}
		}
		if taken != 1<<20-1 {
			t.Errorf("%d more were taken", taken)
		}
		r.engine.SetFault(nil)
		time.Sleep(time.Minute)
		if n := notes.read(); len(n) != 0 || !r.Forget(&key) {
			t.Errorf("%d notes are left when all is through", len(n))
		}
	})
}
