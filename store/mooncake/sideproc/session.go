package sideproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// lane is a kind of calls.
type lane struct {
	name  string
	width int // calls at a time; the process has a thread for each
	// transfer: the process moves bytes of the memory meanwhile.
	transfer bool
	limit    func(*Limits) time.Duration
}

// Numbers of lanes.
const (
	laneExist = iota
	lanePut
	laneGet
	laneRemove
	lanePing
	laneCount
)

// lanes are constant.
var lanes = [laneCount]lane{
	laneExist:  {"exist", 2, false, question},
	lanePut:    {"put", 2, true, transfer},
	laneGet:    {"get", 4, true, transfer},
	laneRemove: {"remove", 1, false, question},
	lanePing:   {"ping", 1, false, pong},
}

func question(l *Limits) time.Duration { return l.Question }
func transfer(l *Limits) time.Duration { return l.Transfer }
func pong(l *Limits) time.Duration     { return l.Pong }

// session is the calls to one process.
type session struct {
	limits Limits
	// kill ends the process; it does not wait.
	kill  func()
	conn  net.Conn
	slots [laneCount]chan struct{} // taken by calls under way
	queue chan []byte              // frames to write: as many as there are slots
	over  chan struct{}            // closed by end

	mu      sync.Mutex
	pending map[uint32]*pending
	next    uint32
	why     error // why the process was condemned, or has ended
	ended   bool
}

// pending is a call under way.
type pending struct {
	lane  int
	timer *time.Timer
	// Set before done is closed.
	answer frame
	err    error
	done   chan struct{}
}

func newSession(conn net.Conn, limits Limits, kill func()) *session {
	s := &session{limits: limits, kill: kill, conn: conn, pending: map[uint32]*pending{}, over: make(chan struct{})}
	total := 0
	for i := range s.slots {
		s.slots[i] = make(chan struct{}, lanes[i].width)
		total += lanes[i].width
	}
	s.queue = make(chan []byte, total)
	return s
}

// condemn kills the process. Calls under way end when it is dead.
func (s *session) condemn(why error) {
	s.mu.Lock()
	if s.why == nil {
		s.why = why
	}
	s.mu.Unlock()
	s.kill()
}

// verdict returns why the process was condemned, nil if it was not.
func (s *session) verdict() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// end fails all calls.
//
// REQUIRES: the process is dead.
func (s *session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = why
	}
	s.ended = true
	for call, p := range s.pending {
		delete(s.pending, call)
		p.err = s.lostLocked()
		s.doneLocked(p)
	}
	close(s.over)
}

func (s *session) lostLocked() error {
	return fmt.Errorf("%w: the side process ended: %w", store.ErrUnavailable, s.why)
}

func (s *session) doneLocked(p *pending) {
	p.timer.Stop()
	close(p.done)
	<-s.slots[p.lane]
}

// write writes frames until the session is over.
func (s *session) write() {
	for {
		select {
		case buf := <-s.queue:
			if _, err := s.conn.Write(buf); err != nil {
				s.condemn(fmt.Errorf("write: %w", err))
				return
			}
		case <-s.over:
			return
		}
	}
}

// read reads answers until the stream ends or makes no sense.
func (s *session) read() error {
	for {
		f, err := readFrame(s.conn)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		p := s.pending[f.call]
		if p == nil {
			s.mu.Unlock()
			return fmt.Errorf("%w: an answer to call %d, which is not open", errFrame, f.call)
		}
		delete(s.pending, f.call)
		p.answer = f
		s.doneLocked(p)
		s.mu.Unlock()
	}
}

// begin waits for a turn in the lane and sends the call.
func (s *session) begin(ctx context.Context, number int, kind byte, body func(dst []byte) []byte) (*pending, error) {
	l := &lanes[number]
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", mooncake.ErrNoTurn, err)
	}
	select {
	case s.slots[number] <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %d calls before: %w", mooncake.ErrNoTurn, l.width, ctx.Err())
	case <-s.over:
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, s.lostLocked()
	}
	limit := l.limit(&s.limits)
	buf := endFrame(body(beginFrame(nil, 0, kind))) // long for many keys: not under the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		<-s.slots[number]
		return nil, s.lostLocked()
	}
	s.next++
	p := &pending{lane: number, done: make(chan struct{})}
	p.timer = time.AfterFunc(limit, func() { s.condemn(fmt.Errorf("no answer to %s in %s", l.name, limit)) })
	s.pending[s.next] = p
	select {
	case s.queue <- numberFrame(buf, s.next):
	default:
		// The slots bound what is queued, unless calls were answered before they were sent.
		s.why = fmt.Errorf("%w: an answer to what was not asked yet", errFrame)
		s.kill()
	}
	return p, nil
}

// call makes a call and returns its n answers. A transfer ends with its answer or
// the process's death, and with nothing else. An answer that leaves open whether it
// goes on is none: the process ends.
func (s *session) call(ctx context.Context, number int, kind byte, n int, body func(dst []byte) []byte) ([]mooncake.Answer, error) {
	p, err := s.begin(ctx, number, kind, body)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if lanes[number].transfer {
		<-p.done
	} else {
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	answers, err := answersOf(p.answer, n)
	if errors.Is(err, errFrame) {
		s.condemn(err)
	}
	if lanes[number].transfer && (err != nil && p.answer.kind == kindFailed || errors.Is(err, errFrame)) {
		// It was begun, and nobody knows how it ended.
		return nil, s.outlive(fmt.Errorf("%s: a transfer failed: %w", lanes[number].name, err))
	}
	if time.Since(begun) < s.limits.Failure {
		return answers, err
	}
	if code := native.MayGoOn(number == lanePut, answers); code != 0 && lanes[number].transfer {
		return nil, s.outlive(fmt.Errorf("%s: a transfer was given up: %w", lanes[number].name, &mooncake.Error{Op: lanes[number].name, Code: code}))
	}
	return answers, err
}

// outlive condemns the process and waits for its death.
func (s *session) outlive(why error) error {
	s.condemn(why)
	<-s.over
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lostLocked()
}
