package worker

import "time"

const (
	// loadPieces copy at a time: one that begins need not wait for one that is
	// under way, and each uses several cores.
	loadPieces = 2
	// passedOver pieces of loads may begin while one of a store waits. Stores that
	// wait hold blocks of the engine's: they get about a hundredth of what loads
	// copy, however many loads there are.
	passedOver = 32
	// askers ask the store again and again at most, of a session, as often as one
	// load does for its chunks that are on their way from a slower tier.
	askers = 32
)

// await waits for the job's next piece, of so many bytes. It returns false when
// the job was given up; else the piece is over with done.
func (q *queue) await(j *job, bytes int) bool {
	q.all.mu.Lock()
	q.all.rules.Ask(q.key(j.id), int64(bytes))
	q.all.grantLocked()
	q.all.unlock()
	select {
	case <-j.turn:
		return true
	default:
	}
	since := time.Now()
	// Others have the turn: whether they are stuck is told of their loops.
	granted := false
	j.loop.Await(func() { granted = q.turn(j) })
	j.waited += time.Since(since)
	if granted {
		return true
	}
	q.all.mu.Lock()
	defer q.all.unlock()
	if !q.all.rules.Withdraw(q.key(j.id)) {
		<-j.turn // it was granted meanwhile
		q.all.rules.Return(q.key(j.id))
	}
	q.all.grantLocked()
	return false
}

// turn waits until the job is granted its piece, or given up. A store looks for
// loads that hang meanwhile.
func (q *queue) turn(j *job) (granted bool) {
	var age <-chan time.Time
	if j.store != nil {
		ticker := time.NewTicker(q.all.interval)
		defer ticker.Stop()
		age = ticker.C
	}
	for {
		select {
		case <-j.turn:
			return true
		case <-j.ctx.Done():
			return false
		case <-age:
			q.all.age()
		}
	}
}

// alone reports whether a begun load has nobody beside it.
func (q *queue) alone(j *job) bool {
	q.all.mu.Lock()
	defer q.all.unlock()
	return q.all.rules.Alone(q.key(j.id))
}

// done ends the job's piece.
func (q *queue) done(j *job) {
	q.all.mu.Lock()
	defer q.all.unlock()
	q.all.rules.Return(q.key(j.id))
	q.all.grantLocked()
}

// aside is a wait of a load for a slower tier: stores and other loads go on
// meanwhile. Many loads that wait so wait longer, so that they do not ask the store
// more often than askers do.
func (q *queue) aside(j *job, atMost time.Duration, wait func(atMost time.Duration)) {
	asides := q.setAside(j, true)
	defer q.setAside(j, false)
	wait(atMost * time.Duration(1+asides/askers))
}

// setAside returns how many loads are aside now.
func (q *queue) setAside(j *job, aside bool) int {
	q.all.mu.Lock()
	defer q.all.unlock()
	asides := q.all.rules.Aside(q.key(j.id), aside)
	q.beginLocked()
	q.all.grantLocked()
	return asides
}

// pieceEnd returns the end of the piece that begins at from: at most so many bytes,
// and one shard at least.
func pieceEnd(copies []ShardCopy, from, bytes int) (to, size int) {
	for to = from; to < len(copies); to++ {
		n := len(copies[to].Memory)
		if to > from && size+n > bytes {
			break
		}
		size += n
	}
	return to, size
}
