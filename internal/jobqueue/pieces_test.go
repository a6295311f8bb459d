package jobqueue

import (
	"math/rand/v2"
	"testing"
)

// player plays the jobs of a queue: it takes every piece that is granted, and
// checks each against what the package's text promises.
type player struct {
	t        *testing.T
	q        *Queue
	random   *rand.Rand
	state    map[ID]state
	kind     map[ID]Kind
	piece    map[ID]int64
	aside    map[ID]bool
	ticks    int
	moved    map[ID]int // the tick at which it did something last
	largest  int64
	sinceAsk map[ID]map[ID]int64 // what others of its session were granted while it asks
	passed   map[ID]int          // pieces of loads granted while the store asks
	pieces   int                 // of loads, granted since one of a store was while stores ask
}

const playedSessions = 3

func (p *player) grantAll() {
	for {
		id, ok := p.q.Next()
		if !ok {
			return
		}
		if p.state[id] != asking {
			p.t.Fatalf("%v was granted a piece that it did not ask for", id)
		}
		p.state[id] = moving
		p.check(id)
		p.moved[id] = p.ticks
	}
}

// holds reports whether stores wait for a begun job.
func (p *player) holds(id ID) bool {
	return p.kind[id] == Load && !p.aside[id] && p.ticks-p.moved[id] < 2
}

// active returns how many loads stores wait for.
func (p *player) active() (n int) {
	for id, s := range p.state {
		if s != waiting && p.holds(id) {
			n++
		}
	}
	return n
}

// checkAlone compares who is alone with a count of the others.
func (p *player) checkAlone() {
	for id, s := range p.state {
		if p.kind[id] != Load || s == waiting {
			continue
		}
		others := p.active()
		if p.holds(id) {
			others--
		}
		if want := others == 0 && len(p.passed) == 0; p.q.Alone(id) != want {
			p.t.Fatalf("beside %d loads and %d stores that ask: alone is %v", others, len(p.passed), !want)
		}
	}
}

func (p *player) check(id ID) {
	active, moves := p.active(), 0
	for other, s := range p.state {
		if s == moving && other.Session == id.Session && p.kind[other] == Load {
			moves++
		}
	}
	delete(p.sinceAsk, id)
	if p.kind[id] == Store {
		if active > 0 && p.pieces < testLimits.PassedOver {
			p.t.Fatalf("store %v goes before %d loads, after %d pieces", id, active, p.pieces)
		}
		delete(p.passed, id)
		p.pieces = 0
		return
	}
	if moves > testLimits.LoadPieces {
		p.t.Fatalf("session %d moves %d pieces", id.Session, moves)
	}
	if len(p.passed) > 0 {
		if p.pieces++; p.pieces > testLimits.PassedOver {
			p.t.Fatalf("%d pieces of loads, and no store has had one", p.pieces)
		}
	}
	for other := range p.passed {
		// Each of the other sessions may have a store that has waited longer.
		if p.passed[other]++; p.passed[other] > testLimits.PassedOver*playedSessions {
			p.t.Fatalf("store %v was passed over %d times", other, p.passed[other])
		}
	}
	for other, granted := range p.sinceAsk {
		if other.Session == id.Session && p.kind[other] == Load {
			if granted[id] += p.piece[id]; granted[id] > 2*p.largest {
				p.t.Fatalf("load %v waits, and %v was granted %d bytes", other, id, granted[id])
			}
		}
	}
}

// Random jobs of several sessions: loads before stores, no load and no store
// starves beyond the bounds, no more pieces than allowed, and in the end all have
// moved.
func TestPiecesKeepTheirBounds(t *testing.T) {
	random := randomly(t)
	for range 150 {
		p := &player{
			t: t, q: New(testLimits), random: random, state: map[ID]state{}, kind: map[ID]Kind{}, piece: map[ID]int64{}, aside: map[ID]bool{}, moved: map[ID]int{},
			largest: leastPiece * int64(1+random.IntN(20)), sinceAsk: map[ID]map[ID]int64{}, passed: map[ID]int{},
		}
		for session := range uint64(playedSessions) {
			p.q.Open(session)
		}
		next := uint64(0)
		for range 400 {
			session, kind := uint64(random.IntN(playedSessions)), Kind(random.IntN(int(kinds)))
			next++
			id := ID{session, next}
			if _, err := p.q.Offer(id, kind, 1); err == nil {
				p.state[id], p.kind[id] = waiting, kind
			}
			if id, ok := p.q.Begin(session, kind); ok {
				p.state[id], p.moved[id] = begun, p.ticks
			}
			if random.IntN(4) == 0 {
				p.q.Tick()
				p.ticks++
			}
			p.step()
			if len(p.passed) == 0 {
				p.pieces = 0
			}
			p.checkAlone()
			p.grantAll()
		}
	}
}

// step moves a random job on.
func (p *player) step() {
	for id, s := range p.state { // in no order, which is one of chance
		load := p.kind[id] == Load
		switch {
		case s == begun && p.aside[id]:
			p.q.Aside(id, false)
			p.aside[id], p.moved[id] = false, p.ticks
		case s == begun && load && p.random.IntN(10) == 0:
			p.q.Aside(id, true)
			p.aside[id] = true
		case s == begun && p.random.IntN(10) == 0 || s != waiting && p.random.IntN(50) == 0:
			p.q.End(id)
			delete(p.state, id)
			delete(p.sinceAsk, id)
			delete(p.passed, id)
		case s == begun:
			p.piece[id] = leastPiece + p.random.Int64N(p.largest-leastPiece+1)
			p.q.Ask(id, p.piece[id])
			p.state[id], p.moved[id] = asking, p.ticks
			if load {
				p.sinceAsk[id] = map[ID]int64{}
			} else {
				p.passed[id] = 0
			}
		case s == asking && p.random.IntN(20) == 0:
			if !p.q.Withdraw(id) {
				p.t.Fatalf("%v asks, and can't withdraw", id)
			}
			p.state[id] = begun
			delete(p.sinceAsk, id)
			delete(p.passed, id)
		case s == moving:
			if p.q.Withdraw(id) {
				p.t.Fatalf("%v withdrew what it was granted", id)
			}
			p.q.Return(id)
			p.state[id], p.moved[id] = begun, p.ticks
		default:
			continue
		}
		return
	}
}

// A load that comes anew starts where the others are: it does not make up for what
// they moved before it came.
func TestALongLoadIsNotHeldUpByOnesThatComeAnew(t *testing.T) {
	limits := testLimits
	limits.LoadPieces = 1
	q := New(limits)
	q.Open(1)
	begin := func(job uint64) ID {
		if _, err := q.Offer(ID{1, job}, Load, 1); err != nil {
			t.Fatal(err)
		}
		q.Begin(1, Load)
		return ID{1, job}
	}
	long := begin(0)
	q.Ask(long, leastPiece)
	for range 1000 {
		id, _ := q.Next()
		q.Return(id)
		q.Ask(id, leastPiece)
	}
	anew := begin(1)
	q.Ask(anew, leastPiece)
	for n := 0; ; n++ {
		id, _ := q.Next()
		if id == long {
			return
		}
		if n == 2 {
			t.Fatalf("%d pieces of the new load went before the old one's", n)
		}
		q.Return(id)
		q.Ask(id, leastPiece)
	}
}

// A short load that comes behind long ones waits for a piece of each, and moves
// while they go on.
func TestAShortLoadIsNotHeldUpByLongOnes(t *testing.T) {
	limits := testLimits
	limits.LoadPieces = 1
	q := New(limits)
	q.Open(1)
	for job := range uint64(3) {
		if _, err := q.Offer(ID{1, job}, Load, 1); err != nil {
			t.Fatal(err)
		}
		q.Begin(1, Load)
	}
	const mib = 1 << 20
	long := []ID{{1, 0}, {1, 1}}
	for _, id := range long {
		q.Ask(id, mib)
	}
	for range 1000 { // they have moved much before it comes
		id, _ := q.Next()
		q.Return(id)
		q.Ask(id, mib)
	}
	short := ID{1, 2}
	q.Ask(short, mib)
	for n := 0; ; n++ {
		id, ok := q.Next()
		if !ok {
			t.Fatal("nobody moves")
		}
		if id == short {
			return
		}
		if n == 2*len(long) {
			t.Fatalf("%d pieces of others went before the short load's", n)
		}
		q.Return(id)
		q.Ask(id, mib)
	}
}
