package level

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// The master's time for a question is that of its keys, most of which say what the
// others have said: the shards of a chunk are put together, and a chain from its
// beginning. So of a long question one shard a chunk is asked for, of chunks of one
// shard every fourth, and a few whole. What was not asked is concluded:
//
//   - a chunk is there if the shard that was asked for is;
//   - a chunk of a chain is there if those before and behind it are.
//
// Where a chain ends it is asked in full. What does not fit the rules, a chain with a
// hole or a chunk with a part, is a doubt: then, and for a while after it, all keys are
// asked for, and so they are after a load that did not find what was concluded. So what
// is promised wrongly, which a load reports as a miss, is so once in that while. Which
// shard, or which chunk of four, is asked for changes from question to question, so that
// each has its lease renewed.
const (
	// sparseFrom is the length of a question, in chunks, from which on it is sparse: a
	// short one costs little.
	sparseFrom = 256
	// stride is how many chunks of one shard there are to one that is asked for.
	stride = 4
	// wholeEach is how many chunks of several shards there are to one that is asked for
	// whole, and edge how many at the end of a chain are.
	wholeEach, edge = 16, 16
	// doubtFor is how long all keys are asked for after a doubt.
	doubtFor = time.Minute
)

// doubt notes that not all is there that should be.
func (l *Level) doubt(s *space) {
	if s.exactUntil.Swap(l.nowMS()+doubtFor.Milliseconds()) <= l.nowMS() {
		l.mu.Lock()
		l.stats.Doubts++
		l.mu.Unlock()
	}
}

func (l *Level) doubts(s *space) bool { return l.nowMS() < s.exactUntil.Load() }

// isChain tells whether a group's chunks are put from the first on, and of use only
// then.
func (s *space) isChain(group uint32) bool {
	if int(group) >= len(s.spec.Groups) {
		return false
	}
	switch s.spec.Groups[group].Kind {
	case kv.FullAttention, kv.MLAAttention, kv.SinkFullAttention:
		return true
	}
	return false
}

// partOf is what is asked for of the i-th chunk of a sparse question, and how many keys
// that are.
func (s *space) partOf(group uint32, i int, turn uint32) (part mooncake.Part, keys int) {
	switch shards := s.shards(group); {
	case shards > 1 && i%wholeEach != 0:
		return mooncake.OneShard(int((uint32(i) + turn) % uint32(shards))), 1
	case shards == 1 && (uint32(i)+turn)%stride != 0 && s.isChain(group):
		return mooncake.NoShard(), 0
	default:
		return mooncake.Part{}, shards
	}
}

// turnOf is the turn of a question. Questions take turns with those for the same
// chunks: of two that are asked alternately each would have every second turn only.
func (l *Level) turnOf(s *space, chunks []store.ChunkKey) uint32 {
	last := &chunks[len(chunks)-1]
	at := s.digest(last.Group, &last.Hash) * scramble >> 32 % uint64(len(l.turns))
	return l.turns[at].Add(1) + uint32(at)
}

// askSparsely asks for chunks with one call and a short one, if it has to.
func (l *Level) askSparsely(ctx context.Context, s *space, chunks []store.ChunkKey, turn uint32) error {
	parts := make([]mooncake.Part, len(chunks))
	for i := range chunks {
		last := i == len(chunks)-1 || chunks[i+1].Group != chunks[i].Group
		if !last { // the last is asked for whole: nothing behind it speaks for it
			parts[i], _ = s.partOf(chunks[i].Group, i, turn)
		}
	}
	begun := l.opts.Now()
	found, err := l.client.PartsExist(ctx, s.name, chunks, parts)
	if err != nil {
		return l.noteAnswers(s, chunks, nil, nil, begun, err)
	}
	again, holes := s.conclude(chunks, parts, found)
	if holes {
		l.doubt(s)
		_, err := l.askSome(ctx, s, chunks)
		return err
	}
	if err := l.noteAnswers(s, chunks, parts, found, begun, nil); err != nil || len(again) == 0 {
		return err
	}
	_, err = l.askSome(ctx, s, again)
	return err
}

// conclude completes the answers to a sparse question, and returns the chunks that are
// to be asked for in full: those where a chain ends. holes: a chain goes on behind its
// end.
func (s *space) conclude(chunks []store.ChunkKey, parts []mooncake.Part, found []kv.Existence) (again []store.ChunkKey, holes bool) {
	for from := 0; from < len(chunks); {
		to := from
		for to < len(chunks) && chunks[to].Group == chunks[from].Group {
			to++
		}
		if s.isChain(chunks[from].Group) {
			end, hole := concludeChain(found[from:to])
			if hole {
				return nil, true
			}
			if end < to-from {
				for i := from + max(end-edge, 0); i < from+end; i++ {
					if parts[i] != (mooncake.Part{}) {
						again = append(again, chunks[i])
						found[i] = kv.Unknown
					}
				}
				for i := from + end; i < to && found[i] == kv.Unknown; i++ {
					again = append(again, chunks[i])
				}
			}
		}
		from = to
	}
	return again, false
}

// concludeChain completes the answers about a chain. end is behind the last chunk that
// is there as far as is known; one that is there behind one that is not is a hole.
func concludeChain(found []kv.Existence) (end int, hole bool) {
	ended := false
	for i, e := range found {
		switch {
		case e == kv.Present && ended:
			return 0, true
		case e == kv.Present:
			end = i + 1
		case e == kv.Absent:
			ended = true
		}
	}
	for i := range found[:end] {
		if found[i] == kv.Unknown {
			found[i] = kv.Present
		}
	}
	return end, false
}
