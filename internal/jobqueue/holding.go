package jobqueue

// stalledTicks is how many ticks pass before a load that does nothing is taken for
// one that hangs: at least one whole interval is among them.
const stalledTicks = 2

// Tick tells that some time has passed. Loads that have done nothing since the last
// tick but one hold up no store any more.
func (q *Queue) Tick() {
	q.ticks++
	for _, s := range q.sessions {
		for _, j := range s.jobs {
			if q.ticks-j.moved >= stalledTicks {
				q.hold(j, false)
			}
		}
	}
}

// movedOn notes that a begun job did something: stores wait for a load that does.
func (q *Queue) movedOn(j *job) {
	j.moved = q.ticks
	q.hold(j, j.kind == Load && !j.aside)
}

// hold sets whether stores wait for a job.
func (q *Queue) hold(j *job, holds bool) {
	switch {
	case holds && !j.holds:
		q.active++
	case !holds && j.holds:
		q.active--
	}
	j.holds = holds
}

// Aside says that a load waits, or waits no more, for something that takes long
// and needs nothing of what stores need, nor what other loads do: both go on
// meanwhile. It returns how many of the session's loads are aside now.
//
// REQUIRES: the load is begun, and neither asks nor moves.
func (q *Queue) Aside(id ID, aside bool) int {
	s := q.sessions[id.Session]
	j := s.jobs[id.Job]
	switch {
	case aside && !j.aside:
		s.take(j, -1)
	case !aside && j.aside:
		s.take(j, 1)
	}
	j.aside = aside
	q.movedOn(j)
	return s.asides()
}
