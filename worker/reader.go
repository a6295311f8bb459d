package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/jobqueue"
)

// read takes messages until the connection ends. A store or load frame that does
// not parse, but names its job, is answered and forgotten; every other fault in
// a frame ends the session.
func (n *session) read() error {
	for {
		msg, fds, err := n.talk.receive()
		var bad *connector.MalformedError
		if errors.As(err, &bad) && bad.Job != 0 && !n.queue.known(bad.Job) {
			n.srv.stats.malformed.Add(1)
			err = n.talk.send(bad.Message())
			if err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return n.srv.complain(n.talk, err)
		}
		closeFDs(fds) // none is due
		if err := n.take(msg); err != nil {
			return n.srv.complain(n.talk, err)
		}
	}
}

func (n *session) take(msg any) error {
	switch m := msg.(type) {
	case *connector.StoreBatch:
		j, err := n.newJob(m.Type, m.Job)
		if err != nil {
			return err
		}
		j.store = m
		if m.Event >= 0 {
			j.after = m.Event
		}
		if n.ahead == m.Job {
			j.final = make(chan struct{})
		}
		for i := range m.Parts {
			p := &m.Parts[i]
			j.bytes += sizeOf(p.Hashes, p.Blocks) + int64(len(p.BoundaryPuts)*24)
		}
		return n.addStore(j)
	case *connector.LoadJob:
		j, err := n.newJob(m.Type, m.Job)
		if err != nil {
			return err
		}
		j.load = m
		j.bytes = sizeOf(m.Hashes, m.Blocks)
		return n.add(j)
	case *connector.After:
		n.after = m.Event
	case *connector.Ahead:
		n.ahead = m.Job
	case *connector.Final:
		for _, id := range m.Jobs {
			n.queue.makeFinal(id, n.after)
		}
	case *connector.Cancel:
		n.cancel(m)
	case *connector.Finished:
		n.finished(m)
	case *connector.Ping:
		return n.srv.pong(n.talk, m)
	default:
		return fmt.Errorf("%w: %T from a registered engine", errOutOfOrder, msg)
	}
	return nil
}

// jobBytes is what a job, or a part of one, costs beside its fields of variable length.
const jobBytes = 1024

func sizeOf(hashes []byte, tables [][]byte) int64 {
	n := jobBytes + len(hashes)
	for _, t := range tables {
		n += len(t)
	}
	return int64(n)
}

// newJob takes a job. One more than the board has words for is the end of the session.
func (n *session) newJob(kind string, id uint64) (*job, error) {
	if slots := int64(n.rank.slots); n.unanswered.Add(1) > slots {
		return nil, &connector.MalformedError{
			Type: kind, Err: fmt.Errorf("job %d: job_slots is %d, and as many jobs have no result yet: read the results", id, slots),
		}
	}
	j := &job{id: id, after: n.after, arrived: time.Now(), turn: make(chan struct{}, 1)}
	j.ctx, j.cancel = context.WithCancel(n.ctx)
	return j, nil
}

// addStore notes a store job in the ledger and queues it.
func (n *session) addStore(j *job) error {
	if n.queue.known(j.id) {
		return n.duplicate(j)
	}
	if !n.begin(j) {
		return n.drop(j, reasonStaleEpoch)
	}
	return n.add(j)
}

// begin notes a store job's parts in the ledger. It reports false for a job of an
// older epoch.
func (n *session) begin(j *job) bool {
	n.ledgerMu.Lock()
	defer n.ledgerMu.Unlock()
	for i := range j.store.Parts {
		if !n.ledger.Begin(j.store.Epoch, j.store.Parts[i].Request, j.part(i)) {
			return false // so is every part: they have one epoch
		}
	}
	return true
}

// add queues a job; a full queue drops the newest store, or this job.
func (n *session) add(j *job) error {
	dropped, err := n.queue.add(j)
	for _, store := range dropped {
		n.forget(store)
		if err := n.drop(store, reasonQueueFull); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, jobqueue.ErrDuplicate):
		return n.duplicate(j)
	case err != nil:
		n.forget(j)
		return n.drop(j, reasonQueueFull)
	}
	return nil
}

// duplicate is the end of the session: the word of the board that both jobs use
// can't cancel either of them.
func (n *session) duplicate(j *job) error {
	j.cancel()
	return &connector.MalformedError{Type: j.kind(), Err: fmt.Errorf("job %d: %w", j.id, jobqueue.ErrDuplicate)}
}

// drop answers a job that was not begun. The error is the connection's, which
// the reader will see for itself.
func (n *session) drop(j *job, reason string) error {
	j.cancel()
	j.waited = time.Since(j.arrived)
	n.send(j, n.untouched(j, connector.StatusDropped, reason))
	return nil
}

// untouched is the result of a job of which no byte was moved.
func (n *session) untouched(j *job, status, reason string) *connector.Result {
	r := &connector.Result{Status: status, Reason: reason}
	if j.load != nil {
		if items, err := n.rank.planLoad(j.load); err == nil {
			r.Failed = failedBlocks(items, nil)
		}
	}
	return r
}

// cancel gives jobs up. A job that runs is answered by its pipeline.
func (n *session) cancel(m *connector.Cancel) {
	n.srv.stats.cancels.Add(int64(len(m.Jobs)))
	for _, id := range m.Jobs {
		var j *job
		if n.srv.cfg.Faults.IgnoreCancel {
			j = n.queue.disown(id)
		} else if j = n.queue.take(id); j != nil {
			j.waited = time.Since(j.arrived)
			n.forget(j)
		}
		if j != nil {
			n.send(j, n.untouched(j, connector.StatusCancelled, reasonCancelled))
		}
	}
}

func (n *session) finished(m *connector.Finished) {
	n.ledgerMu.Lock()
	defer n.ledgerMu.Unlock()
	for _, id := range m.Preempted {
		n.ledger.Preempt(id)
	}
	for _, id := range m.Requests {
		n.ledger.Finish(id)
	}
	n.endings.Add(1)
}

// deviceNames lists the devices for an error message.
func (s *Server) deviceNames() string {
	return strings.Join(slices.Sorted(maps.Keys(s.cfg.Devices)), ", ")
}
