package level

// queue holds what waits, first come, first served. It is pure: its user has the
// lock.
type queue[T any] struct {
	waiting []T
	// bytes is of all that wait or were taken and have not ended.
	bytes uint64
	// more holds a token for everybody who may find something.
	more chan struct{}
}

func newQueue[T any](takers int) queue[T] { return queue[T]{more: make(chan struct{}, takers)} }

// add appends an item and wakes a taker.
func (q *queue[T]) add(item T, bytes uint64) {
	q.waiting = append(q.waiting, item)
	q.bytes += bytes
	q.wake()
}

func (q *queue[T]) wake() {
	select {
	case q.more <- struct{}{}:
	default: // all are awake
	}
}

// take returns the first items as long as with says that they go together, and
// wakes another taker if some are left.
func (q *queue[T]) take(with func(first, next T, taken int) bool) (batch []T) {
	for len(q.waiting) > 0 && (len(batch) == 0 || with(batch[0], q.waiting[0], len(batch))) {
		batch = append(batch, q.waiting[0])
		clear(q.waiting[:1])
		q.waiting = q.waiting[1:]
	}
	if len(q.waiting) > 0 {
		q.wake()
	} else {
		q.waiting = nil
	}
	return batch
}
