package pulse

import "sync"

// Group is the loops of one daemon. It is safe for concurrent use.
type Group struct {
	alive func()

	mu      sync.Mutex
	members map[*Loop]struct{}
	waiting int // members that have not beaten in this round
}

// Loop is one member. INVARIANT: beaten is false for exactly group.waiting members.
type Loop struct {
	group  *Group
	beaten bool // guarded by group.mu
}

// New makes a group. alive is called at the end of each round, by the loop that
// beat last and without a lock: it must be quick, or the loop is slow.
func New(alive func()) *Group {
	return &Group{alive: alive, members: map[*Loop]struct{}{}}
}

// Join adds a loop, which has to beat from now on.
func (g *Group) Join() *Loop {
	if g == nil {
		return nil
	}
	l := &Loop{group: g}
	l.join()
	return l
}

func (l *Loop) join() {
	l.group.mu.Lock()
	defer l.group.mu.Unlock()
	l.beaten = false
	l.group.members[l] = struct{}{}
	l.group.waiting++
}

// Beat says that the loop went round.
func (l *Loop) Beat() {
	if l == nil {
		return
	}
	l.group.mu.Lock()
	complete := false
	if _, in := l.group.members[l]; in && !l.beaten {
		l.beaten = true
		l.group.waiting--
		complete = l.group.endRoundLocked()
	}
	l.group.mu.Unlock()
	if complete {
		l.group.alive()
	}
}

// Leave takes a loop out that ends. The others may have waited for it alone.
func (l *Loop) Leave() {
	if l == nil {
		return
	}
	l.group.mu.Lock()
	complete := false
	if _, in := l.group.members[l]; in {
		delete(l.group.members, l)
		if !l.beaten {
			l.group.waiting--
			complete = len(l.group.members) > 0 && l.group.endRoundLocked()
		}
	}
	l.group.mu.Unlock()
	if complete {
		l.group.alive()
	}
}

// Await runs what may take as long as somebody else pleases. The group does not
// wait for the loop meanwhile; afterwards the loop has gone round.
func (l *Loop) Await(wait func()) {
	if l == nil {
		wait()
		return
	}
	l.Leave()
	defer l.Beat()
	defer l.join()
	wait()
}

// endRoundLocked begins the next round if everybody has beaten.
func (g *Group) endRoundLocked() bool {
	if g.waiting > 0 {
		return false
	}
	for l := range g.members {
		l.beaten = false
	}
	g.waiting = len(g.members)
	return true
}
