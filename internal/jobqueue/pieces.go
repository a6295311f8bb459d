package jobqueue

import (
	"cmp"
	"slices"
)

// leastPiece is what a piece counts for at least: a turn costs something, and a
// job that asks for nothing would never be past its turn.
const leastPiece = 64 << 10

// Ask has a begun job wait for its next piece, of so many bytes; none for a turn
// without any.
//
// REQUIRES: the job is begun, neither asks nor moves, and is not aside.
func (q *Queue) Ask(id ID, bytes int64) {
	s := q.sessions[id.Session]
	j := s.jobs[id.Job]
	q.seq++
	j.state, j.asked, j.piece, j.tag = asking, q.seq, max(bytes, leastPiece), max(j.tag, s.clock)
	s.asking[j.kind] = append(s.asking[j.kind], j)
	q.movedOn(j)
}

// Withdraw takes back what a job asked for. It reports false when the job moves:
// it was granted.
func (q *Queue) Withdraw(id ID) bool {
	s := q.sessions[id.Session]
	j := s.jobs[id.Job]
	if j.state != asking {
		return false
	}
	q.withdraw(s, j)
	j.state = begun
	return true
}

func (q *Queue) withdraw(s *session, j *job) {
	s.asking[j.kind] = without(s.asking[j.kind], j)
	if q.oldestStore() == nil {
		q.passed = 0
	}
}

// Next grants a piece, if one may begin; then there may be another.
func (q *Queue) Next() (id ID, ok bool) {
	store := q.oldestStore()
	if store != nil && (!q.LoadsFirst() || q.passed >= q.limits.PassedOver) {
		q.passed = 0
		return q.grant(store), true
	}
	for _, session := range q.order {
		s := q.sessions[session]
		if len(s.asking[Load]) == 0 || s.moving[Load] >= q.limits.LoadPieces {
			continue
		}
		if store != nil {
			q.passed++
		}
		lowest := slices.MinFunc(s.asking[Load], func(a, b *job) int {
			return cmp.Or(cmp.Compare(a.tag, b.tag), cmp.Compare(a.seq, b.seq))
		})
		s.clock = lowest.tag
		lowest.tag += lowest.piece
		return q.grant(lowest), true
	}
	return ID{}, false
}

// LoadsFirst reports whether there are loads that stores wait for.
func (q *Queue) LoadsFirst() bool { return q.active > 0 }

// Alone reports whether a begun load has nobody beside it, a store that asks for a
// piece included, so that its next piece need not be small.
func (q *Queue) Alone(id ID) bool {
	others := q.active
	if q.sessions[id.Session].jobs[id.Job].holds {
		others--
	}
	return others == 0 && q.oldestStore() == nil
}

func (q *Queue) grant(j *job) ID {
	s := q.sessions[j.id.Session]
	s.asking[j.kind] = without(s.asking[j.kind], j)
	s.moving[j.kind]++
	j.state = moving
	q.movedOn(j)
	return j.id
}

// oldestStore returns the store that has waited longest for a piece, nil if none
// does.
func (q *Queue) oldestStore() (oldest *job) {
	for _, session := range q.order {
		for _, j := range q.sessions[session].asking[Store] {
			if oldest == nil || j.asked < oldest.asked {
				oldest = j
			}
		}
	}
	return oldest
}

func without(list []*job, j *job) []*job {
	at := slices.Index(list, j)
	return slices.Delete(list, at, at+1)
}

// Return ends a job's piece.
//
// REQUIRES: the job moves.
func (q *Queue) Return(id ID) {
	s := q.sessions[id.Session]
	j := s.jobs[id.Job]
	j.state = begun
	s.moving[j.kind]--
	q.movedOn(j)
}
