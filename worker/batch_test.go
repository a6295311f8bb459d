package worker_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
)

// TestPartsOfAJobAreEachTheirOwn: what is wrong with one request's part is no
// fault of the others, and each goes on from where it is.
func TestPartsOfAJobAreEachTheirOwn(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	bad := e.part("bad", ids(1, 2))
	bad.Blocks = [][]byte{table(1, numBlocks)}
	job := e.batch(e.part("a", ids(1, 3)), bad, e.part("b", ids(4, 2)), e.part("a", ids(1, 3)))
	job.Parts[3].Request = "of the same prompt"
	res := e.do(job)
	want(t, res, job.Job, connector.StatusFailed, "malformed")
	if !bytes.Equal(res.Incomplete, table(1)) || res.Chunks != 5 || res.Existing != 3 || res.Asked != 8 {
		t.Errorf("%+v", res)
	}
	for prefix, first := range map[string]uint32{"a": 1, "b": 4} {
		for i := range 2 {
			if got := r.store.Bytes(0, hashAt(prefix, i), 0); !bytes.Equal(got, e.block(first+uint32(i))) {
				t.Errorf("chunk %d of %s holds other bytes", i, prefix)
			}
		}
	}
	before := len(r.store.Puts())
	job = e.batch(e.part("a", ids(1, 4)), e.part("bad", ids(6, 2)), e.part("b", ids(4, 2)))
	want(t, e.do(job), job.Job, connector.StatusOK, "")
	if puts := r.store.Puts()[before:]; len(puts) != 3 || puts[0].Hash != hashAt("a", 3) || puts[1].Hash != hashAt("bad", 0) {
		t.Errorf("asked for %+v", puts)
	}
	r.settled()
}

// TestAHoleIsThePartsOwn: where the store had no room for one request's chunk,
// the others' are saved.
func TestAHoleIsThePartsOwn(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	other := r.engine()
	r.gate.armed.Store(true)
	elsewhere := other.storeJob("b", ids(1, 2)) // underway while the next is asked for
	other.send(elsewhere)
	<-r.gate.entered
	r.gate.armed.Store(false)
	job := e.batch(e.part("a", ids(1, 3)), e.part("b", ids(4, 4)), e.part("c", ids(8, 1)))
	res := e.do(job)
	want(t, res, job.Job, connector.StatusFailed, "underway")
	if !bytes.Equal(res.Incomplete, table(1)) || res.Chunks != 6 {
		t.Errorf("%+v", res)
	}
	r.gate.unblock()
	expect[*connector.Result](other.peer)
	job = e.batch(e.part("a", ids(1, 3)), e.part("b", ids(4, 4)))
	res = e.do(job)
	want(t, res, job.Job, connector.StatusOK, "")
	if res.Asked != 4 || res.Existing != 4 {
		t.Errorf("%+v", res)
	}
	r.settled()
}

// TestARequestSendsWhatIsNew: hashes and blocks begin where it has got to.
func TestARequestSendsWhatIsNew(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	stored(t, e, 4)
	part := e.part("p", ids(1, 6))
	part.FirstHash, part.Hashes = 3, part.Hashes[3*32:]
	part.FirstBlock, part.Blocks = []int{4}, [][]byte{table(5, 6)}
	job := e.batch(part)
	res := e.do(job)
	want(t, res, job.Job, connector.StatusOK, "")
	puts := r.store.Puts()
	last := puts[len(puts)-2:]
	if res.Chunks != 2 || last[0].Hash != hashAt("p", 4) || last[0].Parent != hashAt("p", 3) || last[0].Depth != 4 || last[1].Hash != hashAt("p", 5) {
		t.Errorf("%+v, put %+v", res, last)
	}
	if got := r.store.Bytes(0, hashAt("p", 5), 0); !bytes.Equal(got, e.block(6)) {
		t.Error("other bytes")
	}
	r.settled()
}

// TestLabelsReachTheStore: one call for those that are alike and stand together.
func TestLabelsReachTheStore(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	labels := []connector.Label{{}, {}, {SaltTag: "t", TTLSeconds: 60, Pin: 2}, {TTLSeconds: 5}}
	var parts []connector.StoreJob
	for i, label := range labels {
		part := e.part(string(rune('a'+i)), ids(uint32(1+i), 1))
		part.Label = label
		parts = append(parts, part)
	}
	job := e.batch(parts...)
	want(t, e.do(job), job.Job, connector.StatusOK, "")
	got := r.store.PutOptions()
	wanted := []store.PutOptions{{}, {SaltTag: "t", TTL: time.Minute, Pin: store.PinHard}, {TTL: 5 * time.Second}}
	if len(got) != len(wanted) {
		t.Fatalf("%d calls: %+v", len(got), got)
	}
	for i := range wanted {
		if got[i] != wanted[i] {
			t.Errorf("call %d: %+v, want %+v", i, got[i], wanted[i])
		}
	}
	if n := len(r.store.Puts()); n != 4 {
		t.Errorf("%d puts", n)
	}
	r.settled()
}

// TestPartsOfAPreemptedRequest: only they are void.
func TestPartsOfAPreemptedRequest(t *testing.T) {
	r := newRig(t, nil)
	e := r.engine()
	r.gate.armed.Store(true)
	first := e.storeJob("x", ids(1, 1))
	e.send(first)
	<-r.gate.entered
	job := e.batch(e.part("a", ids(2, 2)), e.part("b", ids(4, 2)))
	e.send(job)
	e.send(&connector.Finished{Type: connector.TypeFinished, Preempted: []string{"r-a"}})
	e.ping()
	r.gate.armed.Store(false)
	r.gate.unblock()
	want(t, expect[*connector.Result](e.peer), first.Job, connector.StatusOK, "")
	res := expect[*connector.Result](e.peer)
	want(t, res, job.Job, connector.StatusFailed, "retired")
	if !bytes.Equal(res.Incomplete, table(0)) || res.Chunks != 2 || r.store.Bytes(0, hashAt("a", 0), 0) != nil {
		t.Errorf("%+v", res)
	}
	r.settled()
}
