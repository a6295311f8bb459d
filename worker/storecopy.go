package worker

import (
	"fmt"
	"time"
)

const (
	// storePieceBytes is what a store copies between two looks at what goes before
	// it: about a millisecond, so long a load may find it beside itself. Where the
	// device can give way it is what a store copies at least, see GivingWay.
	storePieceBytes = 4 << 20
	// loadPieceBytes is what a load copies before another's turn: a few milliseconds,
	// of which dividing the piece among cores is no large part.
	loadPieceBytes = 16 << 20
	// alonePieces are one while a load has nobody beside it: at the end of each piece
	// the cores wait for the last of them. One load that comes meanwhile moves beside it.
	alonePieces = 4
)

// copyAll copies what was granted, batch by batch, and publishes each. A batch is
// copied in pieces: before each the job waits for its turn, and looks whether it,
// or one of its requests, was given up. Where the device can give way, a piece is
// what is left of the batch, until one of these looks is worth while.
func (s *storing) copyAll(copies []ShardCopy, at []int) error {
	batchBytes := pacedBatch(s.n.srv.cfg.BatchBytes, s.n.srv.cfg.StorePace)
	for len(copies) > 0 {
		copied := 0
		for end := s.n.batchEnd(copies, 0, batchBytes); copied < end; {
			_, bytes := pieceEnd(copies[:end], copied, s.n.storePiece)
			err := s.turn(bytes, func() error {
				endings := s.n.endings.Load() // before retire sees what they did
				if s.retire() {
					copies, at = s.current(copies, at, copied)
					end = min(end, len(copies))
				}
				n, err := s.copyPiece(copies[copied:end], endings)
				copied += n
				return err
			})
			if err != nil {
				return err
			}
		}
		// The last look: between the copies and here the engine may have given the
		// blocks up, and only its word says what the bytes were.
		if s.n.isCancelled(s.j) {
			return errCancelled
		}
		if err := s.publish(copies[:copied], at[:copied]); err != nil {
			return err
		}
		copies, at = copies[copied:], at[copied:]
	}
	return nil
}

// copyPiece copies the next piece of what is left of a batch, and returns how many
// copies it has made. Endings that were not counted yet end it early.
func (s *storing) copyPiece(left []ShardCopy, endings uint64) (copied int, err error) {
	least, _ := pieceEnd(left, 0, s.n.storePiece)
	m, ok := s.n.mapping.(GivingWay)
	if !ok || s.n.srv.cfg.StorePace < 100 { // a store that rests does so after each
		return least, s.n.copyBatch(s.j, Store, left[:least])
	}
	return s.n.copyWhile(s.j, m, left, func(copied int) bool {
		return copied < least || !s.n.queue.all.loadsFirst.Load() && s.n.endings.Load() == endings
	})
}

// turn does a step of the store when it is its turn, rested from the last one as
// the pace wants.
func (s *storing) turn(bytes int, step func() error) error {
	s.j.loop.Beat()
	s.rest()
	if s.n.isCancelled(s.j) || !s.n.queue.await(s.j, bytes) {
		return errCancelled
	}
	defer s.n.queue.done(s.j)
	if s.n.isCancelled(s.j) { // the wait may have been long
		return errCancelled
	}
	if d := s.n.srv.cfg.Faults.CopyDelay; d > 0 {
		pause(s.n.ctx, d)
	}
	began := time.Now()
	if err := step(); err != nil {
		if s.n.isCancelled(s.j) {
			return errCancelled
		}
		return fmt.Errorf("%w: %w", errCopy, err)
	}
	s.n.pacer.copied(began, time.Now())
	return nil
}

// rest waits as the pace wants, or until the job is given up.
func (s *storing) rest() {
	began := time.Now()
	if d := s.n.pacer.due(began); d > 0 {
		s.j.loop.Await(func() { pause(s.j.ctx, d) })
		s.j.waited += time.Since(began)
	}
}

// retire marks the parts whose request was preempted since the last look. It
// reports whether there are any: what is left of them is not copied, as the engine
// wants their blocks for others.
func (s *storing) retire() (some bool) {
	s.n.ledgerMu.Lock()
	defer s.n.ledgerMu.Unlock()
	for i := range s.parts {
		p := &s.parts[i]
		if p.failed || p.from == p.to {
			continue
		}
		if _, current := s.n.ledger.Offset(s.j.part(i)); !current {
			s.failPart(p, reasonRetired)
			some = true
		}
	}
	return some
}

// current returns the copies without those from the number copied on whose part
// has failed; their puts are revoked at the end.
func (s *storing) current(copies []ShardCopy, at []int, copied int) ([]ShardCopy, []int) {
	part, to := 0, copied
	for i := copied; i < len(copies); i++ {
		if at[i] < s.parts[part].from { // it was asked for again
			part = 0
		}
		for at[i] >= s.parts[part].to {
			part++
		}
		if !s.parts[part].failed {
			copies[to], at[to] = copies[i], at[i]
			to++
		}
	}
	return copies[:to], at[:to]
}
