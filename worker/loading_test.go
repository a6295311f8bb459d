package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

func TestLoadingChunksAreWaitedFor(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	r.store.SetLoading(3)
	job := e.loadJob("p", ids(20, 4))
	want(t, e.do(job), job.Job, connector.StatusOK, "")
	r.settled()
}

// TestWhatIsThereIsCopiedMeanwhile: a load does not wait for its last chunk to copy
// its first, and takes no chunk before those in front of it.
func TestWhatIsThereIsCopiedMeanwhile(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	from := stored(t, e, 6)
	front, behind, asked := e.block(from[0]), e.block(from[3]), 0
	late := map[kv.Hash]bool{hashAt("p", 1): true, hashAt("p", 2): true, hashAt("p", 5): true}
	r.store.SetLate(func(hash kv.Hash) bool {
		if asked++; asked == 1000 {
			t.Error("what is there was not copied while the rest was on its way")
		}
		if bytes.Equal(e.block(23), behind) {
			t.Error("a chunk was copied whose predecessor is on its way")
		}
		return late[hash] && asked < 1000 && !bytes.Equal(e.block(20), front)
	})
	job := e.loadJob("p", ids(20, 6))
	res := e.do(job)
	want(t, res, job.Job, connector.StatusOK, "")
	if res.Chunks != 6 || res.Asked != 6 || res.AskMicros+res.MoveMicros > res.Micros {
		t.Errorf("%+v", res)
	}
	for i := range 6 {
		if !bytes.Equal(e.block(20+uint32(i)), e.block(from[i])) {
			t.Errorf("chunk %d: other bytes", i)
		}
	}
	r.settled()
}

// TestALoadGoesOnWhenItsLastHasCome: it waits for the last chunk of those that are on
// their way, not for a time; where the store can't tell, it asks after that time.
func TestALoadGoesOnWhenItsLastHasCome(t *testing.T) {
	for _, tells := range []bool{true, false} {
		t.Run(fmt.Sprint("tells=", tells), func(t *testing.T) {
			r := newRig(t, nil)
			e := r.engine()
			stored(t, e, 4)
			var late atomic.Bool
			late.Store(true)
			r.store.SetLate(func(hash kv.Hash) bool { return late.Load() && hash != hashAt("p", 3) })
			var gets, awaits atomic.Int32
			r.store.SetHook(func(call string) error {
				switch call {
				case "Get":
					gets.Add(1)
				case "AwaitArrival":
					awaits.Add(1)
					late.Store(false) // it is there by the time the store looks
					if !tells {
						return errors.New("an older lookupd")
					}
				}
				return nil
			})
			job := e.loadJob("p", ids(20, 4))
			want(t, e.do(job), job.Job, connector.StatusOK, "")
			if gets.Load() != 2 || awaits.Load() != 1 {
				t.Errorf("%d questions and %d waits, want 2 and 1", gets.Load(), awaits.Load())
			}
			if got := r.store.Awaited(); tells && (len(got) != 1 || got[0] != store.ChunkKey{Hash: hashAt("p", 2)}) {
				t.Errorf("waited for %v", got)
			}
			r.settled()
		})
	}
}

// TestAWaitEndsWithItsLoad: a load that is given up does not wait for what it waited for.
func TestAWaitEndsWithItsLoad(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 2)
	r.store.SetLoading(1 << 30)
	begun, ended := make(chan struct{}), make(chan struct{})
	r.store.SetAwait(func(ctx context.Context) {
		close(begun)
		<-ctx.Done()
		close(ended)
	})
	job := e.loadJob("p", ids(20, 2))
	e.send(job)
	<-begun // one that is given up before waits for nothing
	e.giveUp(job.Job)
	want(t, expect[*connector.Result](e.peer), job.Job, connector.StatusCancelled, "cancelled", 20, 21)
	<-ended
	r.settled()
}

// TestAbsentBehindLate: a chunk that does not come ends a load whose front has been
// copied by then, and nothing else of it fails.
func TestAbsentBehindLate(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	from := stored(t, e, 4)
	front := e.block(from[0])
	asked := 0
	r.store.SetLate(func(hash kv.Hash) bool {
		asked++
		return hash == hashAt("p", 1) && asked < 1000 && !bytes.Equal(e.block(20), front)
	})
	r.store.Remove(0, hashAt("p", 2))
	job := e.loadJob("p", ids(20, 4))
	res := e.do(job)
	want(t, res, job.Job, connector.StatusFailed, "absent", 22, 23)
	if got := r.store.Reported(); len(got) != 1 || got[0].Hash != hashAt("p", 2) || got[0].Corrupt {
		t.Errorf("reported %+v", got)
	}
	if res.Chunks != 2 {
		t.Errorf("%+v", res)
	}
	r.settled()
}
