package worker

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Reasons of a Result. The set is fixed: shims and metrics count by it.
const (
	reasonMalformed  = "malformed"
	reasonQueueFull  = "queue_full"
	reasonStaleEpoch = "stale_epoch"
	reasonRetired    = "retired"      // the request was preempted or forgotten
	reasonCancelled  = "cancelled"    // by the board or a cancel
	reasonNoStore    = "no_store"     // the store is away
	reasonStoreError = "store_error"  // the store refused the call
	reasonAbsent     = "absent"       // chunks have gone since the lookup
	reasonCorrupt    = "corrupt"      // chunks did not match their checksum
	reasonCopy       = "copy_failed"  // the engine's memory could not be reached
	reasonNoSpace    = "no_space"     // the store is full
	reasonRefused    = "put_refused"  // the store takes no such put at present
	reasonUnderway   = "underway"     // another engine is storing the same at present
	reasonVoid       = "put_void"     // the put was reset or reclaimed meanwhile
	reasonBadPlace   = "bad_location" // the store named memory that is not there
)

// session is one engine rank.
type session struct {
	srv  *Server
	talk *conversation
	rank *rank
	// mapping and board are closed when every pipeline has returned.
	mapping   Mapping
	board     Board
	namespace *namespace
	queue     *queue
	ctx       context.Context // done at the end of the connection

	ledgerMu sync.Mutex
	ledger   *connector.Ledger // guarded by ledgerMu
}

// serveEngine serves an engine rank: a registration, then jobs.
func (s *Server) serveEngine(c *conversation, hello *connector.Hello, id uint64) error {
	s.addEngine(1)
	defer s.addEngine(-1)
	reg, fds, err := s.registration(c)
	if err != nil {
		return s.complain(c, err)
	}
	if reg == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	n := &session{srv: s, talk: c, ctx: ctx, queue: newQueue(s.cfg.QueueJobs, s.cfg.QueueBytes),
		ledger: connector.NewLedger(connector.MaxLedgerRequests)}
	if err := n.register(reg, fds); err != nil {
		return c.refuse(refusalCode(err), err)
	}
	defer n.unmap()
	s.watchQueue(n.queue)
	defer s.unwatchQueue(n.queue)
	s.cfg.Log.Info("engine registered", "session", id, "pid", c.conn.PeerPID(), "engine", hello.EngineID,
		"model", reg.Namespace.Model, "blocks", reg.NumBlocks)
	if err := c.send(n.registered()); err != nil {
		return err
	}
	// The order at the end matters: the reader has ended, so no job is added;
	// the pipelines are told and waited for; then the memory goes.
	var pipelines sync.WaitGroup
	defer pipelines.Wait()
	defer n.queue.close()
	defer cancel()
	n.start(&pipelines)
	return n.read()
}

// registration waits for the register message, answering pings. It returns nil
// without an error when the peer left.
func (s *Server) registration(c *conversation) (*connector.Register, []int, error) {
	for {
		msg, fds, err := c.receive()
		switch {
		case isEnd(err):
			return nil, nil, nil
		case err != nil:
			return nil, nil, err
		}
		switch m := msg.(type) {
		case *connector.Register:
			return m, fds, nil
		case *connector.Ping:
			if err := s.pong(c, m); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, fmt.Errorf("%w: %T before register", errOutOfOrder, msg)
		}
	}
}

// register maps what the engine shares and opens the namespace. The descriptors
// are taken over.
func (n *session) register(reg *connector.Register, fds []int) error {
	r, err := newRank(reg)
	if err != nil {
		closeFDs(fds)
		return err
	}
	device := n.srv.cfg.Devices[reg.Device]
	if device == nil {
		closeFDs(fds)
		return fmt.Errorf("%w: device %.32q; this %s has %s", errUnsupported, reg.Device, daemonName, n.srv.deviceNames())
	}
	boardFD := fds[reg.JobBoard]
	fds[reg.JobBoard] = -1 // the device must not take it
	board, err := n.srv.cfg.MapBoard(boardFD, reg.JobSlots)
	closeFDs([]int{boardFD})
	if err != nil {
		closeFDs(fds)
		return fmt.Errorf("%w: job board: %w", errBadDescriptor, err)
	}
	mapping, err := device.Map(n.talk.conn.PeerPID(), reg, fds)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", errBadDescriptor, err), board.Close())
	}
	n.rank, n.board, n.mapping = r, board, mapping
	n.namespace = newNamespace(n.srv.cfg.Store, r.spec)
	ctx, cancel := n.srv.storeContext()
	defer cancel()
	if _, err := n.namespace.open(ctx); err != nil && !isAway(err) {
		n.unmap()
		return fmt.Errorf("%w: %w", errWrongNamespace, err)
	}
	return nil
}

func refusalCode(err error) string {
	switch {
	case errors.Is(err, errBadDescriptor):
		return connector.CodeBadDescriptor
	case errors.Is(err, store.ErrShardTooLarge):
		return connector.CodeStoreTooSmall
	case errors.Is(err, errUnsupported):
		return connector.CodeUnsupported
	}
	return connector.CodeWrongNamespace
}

func (n *session) registered() *connector.Registered {
	digest := n.rank.spec.Digest()
	return &connector.Registered{
		Type: connector.TypeRegistered, NamespaceDigest: hex.EncodeToString(digest[:]), StoreReady: n.srv.cfg.StoreReady(),
	}
}

// unmap gives the engine's memory up.
//
// REQUIRES: no pipeline runs.
func (n *session) unmap() {
	if err := errors.Join(n.mapping.Close(), n.board.Close()); err != nil {
		n.srv.cfg.Log.Error("unmap the engine's memory", "error", err)
	}
}

// start runs the pipelines until the queue is closed.
func (n *session) start(wg *sync.WaitGroup) {
	for range n.srv.cfg.LoadPipelines {
		wg.Go(func() { n.pipeline(n.queue.nextLoad, n.runLoad) })
	}
	wg.Go(func() { n.pipeline(n.queue.nextStore, n.runStore) })
}

// pipeline runs jobs until the queue is closed. It goes round at every job and
// every tick; within a job each call to the store and each batch beats.
func (n *session) pipeline(next func(seen *uint64) (*job, bool), run func(*job) *connector.Result) {
	loop := n.srv.cfg.Pulse.Join()
	defer loop.Leave()
	var seen uint64
	for {
		j, open := next(&seen)
		loop.Beat()
		if !open {
			return
		}
		if j != nil {
			j.loop = loop
			r := run(j)
			// An engine that is stopped does not read. That is no fault of ours.
			loop.Await(func() { n.answer(j, r) })
		}
	}
}

// answer ends a job that ran and sends its result.
func (n *session) answer(j *job, r *connector.Result) {
	n.forget(j)
	if n.queue.finish(j) {
		n.send(j, r)
	}
}

// forget takes a job out of the ledger.
func (n *session) forget(j *job) {
	if j.store == nil {
		return
	}
	n.ledgerMu.Lock()
	defer n.ledgerMu.Unlock()
	for i := range j.store.Parts {
		n.ledger.Done(j.part(i))
	}
}

// send completes a result and sends it. A connection that fails ends the
// session by its reader.
func (n *session) send(j *job, r *connector.Result) {
	r.Type, r.Job, r.Kind = connector.TypeResult, j.id, j.kind()
	r.Micros = time.Since(j.arrived).Microseconds()
	n.srv.stats.count(r)
	if err := n.talk.send(r); err != nil && !isEnd(err) {
		n.srv.cfg.Log.Debug("send a result", "job", j.id, "error", err)
	}
}

// isCancelled reports whether the job was given up. The board is the authority:
// the engine writes it before it says anything.
func (n *session) isCancelled(j *job) bool {
	if n.srv.cfg.Faults.IgnoreCancel {
		return n.ctx.Err() != nil
	}
	return j.ctx.Err() != nil || n.board.Word(n.rank.slot(j.id)) != j.id
}

// isAway reports whether a call failed because the store does not answer.
func isAway(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
