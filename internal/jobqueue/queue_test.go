package jobqueue

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var testLimits = Limits{Jobs: 5, Bytes: 1000, AllBytes: 1800, Loads: 3, LoadPieces: 2, PassedOver: 4}

// model is the same queue, told of naively: lists of what waits and what is begun.
type model struct {
	waiting map[uint64]map[Kind][]uint64 // by session
	begun   map[uint64]map[Kind][]uint64
	bytes   map[ID]int64
	short   map[ID]bool // begun in a place for short loads
	aside   map[ID]bool
}

func (m *model) sum(session uint64) (sum int64, jobs int) {
	for id, n := range m.bytes {
		if id.Session == session {
			sum, jobs = sum+n, jobs+1
		}
	}
	return sum, jobs
}

// offer is the rule of admission, by trying: stores go from the newest on until
// the load fits, or none of them goes.
func (m *model) offer(id ID, kind Kind, bytes int64) (dropped []uint64, err error) {
	if _, there := m.bytes[id]; there {
		return nil, ErrDuplicate
	}
	w := m.waiting[id.Session]
	if len(w[kind]) == testLimits.Jobs {
		return nil, ErrFull
	}
	stores := slices.Clone(w[Store])
	sum, jobs := m.sum(id.Session)
	all := bytes
	for _, n := range m.bytes {
		all += n
	}
	if kind == Store && jobs > 0 && all > testLimits.AllBytes {
		return nil, ErrFull
	}
	for jobs > 0 && sum+bytes > testLimits.Bytes {
		if kind == Store || len(stores) == 0 {
			return nil, ErrFull
		}
		newest := stores[len(stores)-1]
		stores = stores[:len(stores)-1]
		dropped = append(dropped, newest)
		sum, jobs = sum-m.bytes[ID{id.Session, newest}], jobs-1
	}
	for _, job := range dropped {
		delete(m.bytes, ID{id.Session, job})
	}
	w[Store] = stores
	w[kind] = append(w[kind], id.Job)
	m.bytes[id] = bytes
	return dropped, nil
}

// begin is the rule of who may begin: stores one at a time; loads while there is a
// place for any size, in order, and then the first that is short.
func (m *model) begin(session uint64, kind Kind) (job uint64, short, ok bool) {
	waits := m.waiting[session][kind]
	if kind == Store {
		if len(waits) == 0 || len(m.begun[session][Store]) > 0 {
			return 0, false, false
		}
		return waits[0], false, true
	}
	var any, shorts, asides int
	var bytes int64
	for _, job := range m.begun[session][Load] {
		switch id := (ID{session, job}); {
		case m.aside[id]:
			asides++
		case m.short[id]:
			shorts++
		default:
			any++
			bytes += m.bytes[id]
		}
	}
	for at, job := range waits {
		switch {
		case asides >= testLimits.Jobs:
		case any < testLimits.Loads:
			return job, false, at == 0
		case shorts < testLimits.Loads && m.bytes[ID{session, job}] <= bytes/int64(any)/8:
			return job, true, true
		}
	}
	return 0, false, false
}

func (m *model) end(id ID) {
	delete(m.bytes, id)
	delete(m.short, id)
	delete(m.aside, id)
	for _, list := range []map[Kind][]uint64{m.waiting[id.Session], m.begun[id.Session]} {
		for kind := range kinds {
			list[kind] = slices.DeleteFunc(list[kind], func(job uint64) bool { return job == id.Job })
		}
	}
}

func randomly(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Random offers, beginnings and ends: who is taken, dropped and begun is what the
// model says, and the budget is never exceeded but by a session's only job.
func TestAdmissionIsTheModels(t *testing.T) {
	random := randomly(t)
	for range 300 {
		q := New(testLimits)
		m := &model{map[uint64]map[Kind][]uint64{}, map[uint64]map[Kind][]uint64{}, map[ID]int64{}, map[ID]bool{}, map[ID]bool{}}
		for session := range uint64(3) {
			q.Open(session)
			m.waiting[session], m.begun[session] = map[Kind][]uint64{}, map[Kind][]uint64{}
		}
		for range 200 {
			session, kind := uint64(random.IntN(3)), Kind(random.IntN(int(kinds)))
			switch random.IntN(5) {
			case 0, 1:
				id, bytes := ID{session, uint64(random.IntN(30))}, int64(1+random.IntN([]int{10, 400}[random.IntN(2)]))
				if random.IntN(20) == 0 {
					bytes = 2 * testLimits.Bytes
				}
				dropped, err := q.Offer(id, kind, bytes)
				wantDropped, wantErr := m.offer(id, kind, bytes)
				if !slices.Equal(dropped, wantDropped) || !errors.Is(err, wantErr) {
					t.Fatalf("offer: dropped %v, %v; want %v, %v", dropped, err, wantDropped, wantErr)
				}
			case 2:
				waits, runs := m.waiting[session][kind], m.begun[session][kind]
				want, short, wantOK := m.begin(session, kind)
				id, ok := q.Begin(session, kind)
				if ok != wantOK || ok && id.Job != want {
					t.Fatalf("begun %v, %v; want %d, %v; waiting %v, begun before %v", id, ok, want, wantOK, waits, runs)
				}
				if ok {
					m.waiting[session][kind] = slices.DeleteFunc(waits, func(job uint64) bool { return job == id.Job })
					m.begun[session][kind], m.short[id] = append(runs, id.Job), short
				}
			case 3:
				if len(m.bytes) == 0 {
					continue
				}
				var ids []ID
				for id := range m.bytes {
					ids = append(ids, id)
				}
				id := ids[random.IntN(len(ids))]
				ran := slices.Contains(append(slices.Clone(m.begun[id.Session][Load]), m.begun[id.Session][Store]...), id.Job)
				if q.Waits(id) == ran || q.End(id) != ran {
					t.Fatalf("%v: running is %v", id, ran)
				}
				m.end(id)
			case 4:
				runs := m.begun[session][Load]
				if len(runs) == 0 {
					continue
				}
				id := ID{session, runs[random.IntN(len(runs))]}
				m.aside[id] = !m.aside[id]
				asides := 0
				for _, job := range runs {
					if m.aside[ID{session, job}] {
						asides++
					}
				}
				if got := q.Aside(id, m.aside[id]); got != asides {
					t.Fatalf("%d loads of %v are aside, want %d", got, runs, asides)
				}
			}
			var want Stats
			for session := range m.waiting {
				sum, jobs := m.sum(session)
				if sum > testLimits.Bytes && jobs > 1 {
					t.Fatalf("session %d has %d jobs of %d bytes", session, jobs, sum)
				}
				want.Bytes += sum
				want.WaitingLoads += len(m.waiting[session][Load])
				want.WaitingStores += len(m.waiting[session][Store])
				want.Running += len(m.begun[session][Load]) + len(m.begun[session][Store])
			}
			if got := q.Stats(); got != want {
				t.Fatalf("got %+v, want %+v", got, want)
			}
		}
		for session := range uint64(3) {
			q.Close(session)
		}
		if got := q.Stats(); got != (Stats{}) || q.bytes != 0 || q.active != 0 || q.passed != 0 {
			t.Fatalf("what is left is %+v, %d active, %d passed", got, q.active, q.passed)
		}
	}
}

func TestALoadThatCannotFitDropsNothing(t *testing.T) {
	q := New(testLimits)
	q.Open(1)
	for job, kind := range []Kind{Load, Store, Store} {
		if _, err := q.Offer(ID{1, uint64(job)}, kind, 300); err != nil {
			t.Fatal(err)
		}
	}
	if dropped, err := q.Offer(ID{1, 9}, Load, 800); !errors.Is(err, ErrFull) || dropped != nil {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	if dropped, err := q.Offer(ID{1, 9}, Load, 400); err != nil || !slices.Equal(dropped, []uint64{2}) {
		t.Errorf("dropped %v, %v; want the newest store, and that is enough", dropped, err)
	}
	if !q.Has(ID{1, 1}) || q.Has(ID{1, 2}) {
		t.Error("the older store is there no more, or the dropped one is")
	}
}
