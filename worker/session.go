package worker

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Reasons of a Result. The set is fixed: shims and metrics count by it.
const (
	reasonMalformed  = "malformed"
	reasonQueueFull  = "queue_full"
	reasonStaleEpoch = "stale_epoch"  // of an older epoch, or of a generation that a reset has ended
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
	pacer     pacer           // the store pipeline's
	ctx       context.Context // done at the end of the connection
	after     int             // the event that the jobs to come wait for; the reader's
	ahead     uint64          // the last store job that was said to come ahead; the reader's
	// unanswered are the jobs that were taken and whose results wait to be written: no
	// more than the board has words, or an engine that does not read would have results
	// held for it without end.
	unanswered atomic.Int64
	// loadPiece and storePiece are what a load and a store copy before another's turn.
	loadPiece, storePiece int

	ledgerMu sync.Mutex
	ledger   *connector.Ledger // guarded by ledgerMu
	endings  atomic.Uint64     // messages of requests that finished or were preempted
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
	n := &session{
		srv: s, talk: c, ctx: ctx, after: -1, pacer: pacer{pace: s.cfg.StorePace}, ledger: connector.NewLedger(connector.MaxLedgerRequests),
	}
	if err := n.register(reg, fds); err != nil {
		return c.refuse(refusalCode(err), err)
	}
	defer n.unmap()
	defer n.follow()()
	s.cfg.Log.Info("engine registered", "session", id, "pid", c.conn.PeerPID(), "engine", hello.EngineID,
		"model", reg.Namespace.Model, "blocks", reg.NumBlocks)
	if err := c.send(n.registered()); err != nil {
		return err
	}
	// The order at the end matters: the reader has ended, so no job is added;
	// what runs is told and waited for; then the memory goes.
	var running sync.WaitGroup
	n.queue = s.schedule.open(func(j *job) { running.Go(func() { n.runOne(j, s.cfg.Pulse.Join()) }) })
	defer n.queue.leave()
	defer running.Wait()
	defer n.queue.close()
	defer cancel()
	running.Go(n.storePipeline)
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
	n.loadPiece, n.storePiece = loadPieceBytes, storePieceBytes
	if sized, ok := mapping.(SizedMapping); ok {
		n.loadPiece, n.storePiece = sized.PieceBytes()
	}
	n.namespace = newNamespace(n.srv.cfg.Store, r.spec)
	ctx, cancel := n.srv.storeContext()
	defer cancel()
	if _, err := n.namespace.open(ctx); err != nil && !isAway(err) {
		n.unmap()
		return fmt.Errorf("%w: %w", errWrongNamespace, err)
	}
	return nil
}

// follower is a store that has references ready for loads that lookups of an
// engine lead to: on held shards of each group from a first one on.
type follower interface {
	Follow(engine string, shards []int, held int) (stop func())
}

// follow tells such a store what the session's loads will ask for.
func (n *session) follow() (stop func()) {
	f, ok := n.srv.cfg.Store.(follower)
	if !ok {
		return func() {}
	}
	shards := make([]int, len(n.rank.groups))
	for g := range shards {
		shards[g] = int(n.rank.groups[g].shard)
	}
	return f.Follow(n.rank.engine, shards, n.rank.held)
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
	ns, _ := n.namespace.known()
	events, some := n.mapping.(EventMapping)
	return &connector.Registered{
		Type: connector.TypeRegistered, NamespaceDigest: hex.EncodeToString(digest[:]), StoreReady: n.srv.cfg.StoreReady(),
		Generation: ns.ResetEpoch, EventsRefused: some && !events.HasEvents(), Ahead: true,
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

// runOne runs a load in its own goroutine, which has a loop of its own: each call
// to the store and each piece beats.
func (n *session) runOne(j *job, loop *pulse.Loop) {
	defer loop.Leave()
	n.run(j, loop, n.runLoad)
}

// storePipeline runs stores one after the other until the queue is closed: a
// request's next job goes on where its last one ended. It goes round at every job
// and every tick.
func (n *session) storePipeline() {
	loop := n.srv.cfg.Pulse.Join()
	defer loop.Leave()
	var seen uint64
	for {
		j, open := n.queue.nextStore(&seen)
		loop.Beat()
		if !open {
			return
		}
		if j != nil {
			n.run(j, loop, n.runStore)
		}
	}
}

func (n *session) run(j *job, loop *pulse.Loop, run func(*job) *connector.Result) {
	j.loop, j.waited = loop, time.Since(j.arrived)
	r := run(j)
	// An engine that is stopped does not read. That is no fault of ours.
	loop.Await(func() { n.answer(j, r) })
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
	n.srv.stats.count(r, j.waited)
	// The engine may answer a result with another job before the write returns.
	begin := func() { n.unanswered.Add(-1) }
	if err := n.talk.sendInTurn(r, begin); err != nil && !isEnd(err) {
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
