package worker

import "time"

// A store that comes ahead (connector.Ahead) is planned and asks for its places while
// the engine computes what is to be stored. It copies when the engine says that the
// bytes are there (connector.Final).

// makeFinal lets a job that came ahead of its bytes go on: they are there when the
// event has happened. A job that has ended, or waits for nothing, is left alone.
func (q *queue) makeFinal(id uint64, after int) {
	q.all.mu.Lock()
	defer q.all.unlock()
	j := q.live[id]
	if j == nil || j.final == nil || j.isFinal {
		return
	}
	j.isFinal, j.after = true, after
	close(j.final)
}

// awaitFinal waits until the bytes of a store that came ahead of them are there. Only
// the engine knows: it says so, gives the job up, or ends the session. What another
// had underway before may be stored by then, or given up, so that is asked for again.
// The job's time begins anew, for the engine's step is no part of it.
func (s *storing) awaitFinal(copies []ShardCopy, at []int) ([]ShardCopy, []int, error) {
	if s.j.final == nil {
		return copies, at, nil
	}
	s.j.loop.Await(func() {
		select {
		case <-s.j.final:
		case <-s.j.ctx.Done():
		}
	})
	if s.j.ctx.Err() != nil {
		return nil, nil, errCancelled
	}
	s.j.arrived, s.j.waited = time.Now(), 0
	s.times.restart()
	if len(s.underway) == 0 {
		return copies, at, nil
	}
	again := s.underway
	s.underway = nil
	moreCopies, moreAt, err := s.start(again)
	return append(copies, moreCopies...), append(at, moreAt...), err
}
