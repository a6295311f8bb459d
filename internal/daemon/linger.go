package daemon

import (
	"sync"
	"time"
)

// linger calls expired when there was no session for a while.
type linger struct {
	after   time.Duration // 0: never
	expired func()

	mu    sync.Mutex
	timer *time.Timer // nil while there are sessions
}

// newLinger starts to count: nobody is there yet.
func newLinger(after time.Duration, expired func()) *linger {
	l := &linger{after: after, expired: expired}
	l.sessions(0)
	return l
}

// sessions says how many there are now.
func (l *linger) sessions(n int) {
	if l.after == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if n == 0 {
		l.timer = time.AfterFunc(l.after, l.expired)
	}
}

// stop ends the count; expired is not called any more, though a call may be
// under way.
func (l *linger) stop() { l.sessions(1) }
