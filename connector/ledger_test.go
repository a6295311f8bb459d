package connector

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// part numbers parts, two to a job.
func part(n uint64) JobPart { return JobPart{Job: n / 2, Part: int(n % 2)} }

func offset(t *testing.T, l *Ledger, job uint64, want int, wantOK bool) {
	t.Helper()
	if got, ok := l.Offset(part(job)); got != want || ok != wantOK {
		t.Errorf("offset of job %d: %d, %v; want %d, %v", job, got, ok, want, wantOK)
	}
}

func TestLedgerOffsets(t *testing.T) {
	l := NewLedger(10)
	l.Begin(1, "a", part(1))
	offset(t, l, 1, 0, true)
	l.Advance(part(1), 64)
	l.Done(part(1))
	l.Begin(1, "a", part(2))
	offset(t, l, 2, 64, true)
	l.Advance(part(2), 32)
	offset(t, l, 2, 64, true)
	l.Done(part(2))
	l.Finish("a")
	l.Begin(1, "a", part(3))
	offset(t, l, 3, 0, true)
}

func TestLedgerFinishWaitsForJobs(t *testing.T) {
	l := NewLedger(10)
	l.Begin(1, "a", part(1))
	l.Finish("a")
	offset(t, l, 1, 0, true)
	l.Done(part(1))
	if l.Requests() != 0 || l.Live() != 0 {
		t.Errorf("%d requests, %d jobs left", l.Requests(), l.Live())
	}
}

// The id of a request that has ended is used again while its job still runs: by
// another prompt, of which nothing is saved.
func TestLedgerFinishFreesTheName(t *testing.T) {
	l := NewLedger(10)
	l.Begin(1, "a", part(1))
	l.Advance(part(1), 64)
	l.Finish("a")
	l.Begin(1, "a", part(2))
	offset(t, l, 2, 0, true)
	l.Advance(part(1), 128)
	offset(t, l, 2, 0, true)
	offset(t, l, 1, 128, true)
	l.Preempt("a") // the new one
	offset(t, l, 1, 128, true)
	offset(t, l, 2, 0, false)
}

// The id of a preempted request is used again while its old job still runs.
func TestLedgerPreemptVoidsOldJobs(t *testing.T) {
	l := NewLedger(10)
	l.Begin(1, "a", part(1))
	l.Preempt("a")
	offset(t, l, 1, 0, false)
	l.Begin(1, "a", part(2))
	l.Advance(part(1), 1000)
	offset(t, l, 2, 0, true)
	l.Done(part(1))
	offset(t, l, 2, 0, true)
	l.Advance(part(2), 16)
	offset(t, l, 2, 16, true)
}

func TestLedgerEpochs(t *testing.T) {
	l := NewLedger(10)
	l.Begin(5, "a", part(1))
	l.Advance(part(1), 16)
	if l.Begin(4, "a", part(2)) {
		t.Error("a job of an older epoch was accepted")
	}
	if !l.Begin(6, "a", part(3)) {
		t.Error("a job of a newer epoch was refused")
	}
	offset(t, l, 1, 0, false)
	offset(t, l, 3, 0, true)
}

func TestLedgerIsBounded(t *testing.T) {
	l := NewLedger(3)
	l.Begin(1, "busy", part(1))
	for i := range 10 {
		job := uint64(2 + i)
		l.Begin(1, fmt.Sprint(i), part(job))
		l.Done(part(job))
	}
	if l.Requests() != 3 {
		t.Errorf("%d requests", l.Requests())
	}
	offset(t, l, 1, 0, true) // the busy one is not the victim
}

// The model: an incarnation of a request is a number; jobs belong to one.
func TestLedgerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger(1000)
		type incarnation struct {
			offset  int
			retired bool
		}
		current := map[string]*incarnation{}
		jobs := map[uint64]*incarnation{}
		var live []uint64
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		for next := uint64(1); next < 60; next++ {
			switch op := rapid.SampledFrom([]string{"begin", "advance", "done", "finish", "preempt"}).Draw(t, "op"); op {
			case "begin":
				id := name.Draw(t, "id")
				l.Begin(1, id, part(next))
				if current[id] == nil {
					current[id] = &incarnation{}
				}
				jobs[next] = current[id]
				live = append(live, next)
			case "finish", "preempt":
				id := name.Draw(t, "id")
				inc := current[id]
				if op == "finish" {
					l.Finish(id)
				} else {
					l.Preempt(id)
				}
				if inc != nil {
					inc.retired = op == "preempt"
					delete(current, id)
				}
			default:
				if len(live) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "job")
				job := live[i]
				inc := jobs[job]
				if op == "advance" {
					to := rapid.IntRange(0, 100).Draw(t, "to")
					l.Advance(part(job), to)
					inc.offset = max(inc.offset, to)
					continue
				}
				l.Done(part(job))
				live = append(live[:i], live[i+1:]...)
			}
			for _, job := range live {
				got, ok := l.Offset(part(job))
				if want := jobs[job]; ok == want.retired || ok && got != want.offset {
					t.Fatalf("job %d: %d, %v; want %+v", job, got, ok, want)
				}
			}
			if l.Live() != len(live) || l.Requests() != len(current) {
				t.Fatalf("%d jobs, %d requests; want %d, %d", l.Live(), l.Requests(), len(live), len(current))
			}
		}
	})
}
