package mooncake

import (
	"context"
	"hash/crc32"

	"github.com/mooncake-sidecar/sidecar/store"
)

// maxBatchBytes bounds what one call of the engine transfers, so that it ends
// within the engine's time limit on a slow network.
const maxBatchBytes = 64 << 20

// publish stores puts and ends them, whatever becomes of them.
func (s *Store) publish(ctx context.Context, ending []*openPut) (done []bool, err error) {
	done = make([]bool, len(ending))
	// One after the other by pin: what a put has in common with others is said once a call.
	rest := make([]int, len(ending))
	for i := range rest {
		rest[i] = i
	}
	for len(rest) > 0 {
		var batch []int
		batch, rest = putBatch(ending, rest)
		if err == nil {
			err = s.reach(ctx)
		}
		if err != nil {
			s.mu.Lock()
			for _, i := range batch {
				s.dropLocked(ending[i])
			}
			s.mu.Unlock()
			continue
		}
		err = s.publishBatch(ctx, ending, batch, done)
	}
	return done, err
}

// putBatch divides what is left into the next call and the rest.
func putBatch(ending []*openPut, left []int) (batch, rest []int) {
	pin, bytes := ending[left[0]].pin, uint64(0)
	for _, i := range left {
		p := ending[i]
		if p.pin == pin && len(batch) < MaxTransfer && (len(batch) == 0 || bytes+p.at.Bytes <= maxBatchBytes) {
			batch, bytes = append(batch, i), bytes+p.at.Bytes
		} else {
			rest = append(rest, i)
		}
	}
	return batch, rest
}

// publishBatch makes one call of the engine.
func (s *Store) publishBatch(ctx context.Context, ending []*openPut, batch []int, done []bool) error {
	how := s.cfg.Replication
	switch ending[batch[0]].pin {
	case store.PinNone:
	case store.PinSoft:
		how.SoftPin = true
	case store.PinHard:
		how.HardPin = true
	}
	batch = s.dropChanged(ending, batch)
	objects := make([]Object, len(batch))
	for k, i := range batch {
		objects[k] = Object{Key: ending[i].key, Range: ending[i].at}
	}
	var answers []Answer
	var err error
	if len(objects) > 0 {
		answers, err = s.cfg.Engine.Put(ctx, how, objects)
	}
	late := s.settle(ending, batch, answers, done, &err)
	if len(late) == 0 {
		return err
	}
	// A reset came in between: what was stored after it goes, too, whoever waits.
	if _, removing := s.remove(context.WithoutCancel(ctx), s.namespaceOf(ending[batch[0]]), late); removing != nil {
		s.cfg.Log.Warn("chunks that were stored during a reset could not be removed yet", "chunks", len(late), "error", removing)
	}
	return err
}

// dropChanged ends the puts whose bytes are not those that were written, and
// returns the others: an object has no checksum with it, so that nobody would see.
func (s *Store) dropChanged(ending []*openPut, batch []int) (same []int) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for _, i := range batch {
		p := ending[i]
		if crc32.Checksum(s.cfg.Memory[p.at.Offset:][:p.at.Bytes], castagnoli) == p.sum {
			same = append(same, i)
			continue
		}
		s.cfg.Log.Error("a shard changed between its checksum and its put; it is not stored", "key", p.key)
		s.mu.Lock()
		s.stats.PutsChanged++
		s.dropLocked(p)
		s.mu.Unlock()
	}
	return same
}

func (s *Store) namespaceOf(p *openPut) *namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.namespaces[p.ns-1]
}

// settle ends the puts of a call. It returns the keys of those that a reset
// voided meanwhile.
func (s *Store) settle(ending []*openPut, batch []int, answers []Answer, done []bool, err *error) (late []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*err = s.noteLocked("put", answers, *err)
	for k, i := range batch {
		p := ending[i]
		stored := k < len(answers) && answers[k] >= 0
		if k < len(answers) && answers[k].Code() == CodeNoSpace {
			s.fullUntil = s.cfg.Now().Add(fullPause)
		}
		switch reset := s.namespaces[p.ns-1].resets != p.resets; {
		case stored && !reset:
			done[i] = true
			s.stats.Puts++
			s.stats.PutBytes += p.at.Bytes
			s.staging.give(p.at.Offset, p.at.Bytes)
			delete(s.underway, p.key)
			continue
		case reset:
			late = append(late, p.key) // answered or not, it may be there
		}
		s.dropLocked(p)
	}
	return late
}
