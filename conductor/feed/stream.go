package feed

import (
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/enginehash"
	"github.com/mooncake-sidecar/sidecar/conductor/follow"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// stream is what was heard of a publisher: the messages in their order, decoded and applied.
// It is the follower's sink.
type stream struct {
	service  *contract.Service
	source   *prefixindex.Source
	decoder  *kvevents.Decoder
	follower *follow.Follower
	checker  *enginehash.Checker

	// whole: all is known since the publisher began, or since it held nothing; since is the
	// number from which on all is known where it is not.
	whole bool
	since uint64
	// any: something was applied since all was forgotten.
	any bool
	// announcing: a store tells all anew, and has not come to its end.
	announcing bool

	batches, rejected uint64
	// blockTokens is the size of the blocks that were told of last.
	blockTokens int
	// rank is another one than the service's that a batch was of, -1 for none.
	rank int
	// unreadable is why the latest batch that could not be read could not.
	unreadable string
	// published is when the latest batch was made, by its publisher's clock.
	published time.Time
}

const noRank = -1

func newStream(service *contract.Service, source *prefixindex.Source) *stream {
	s := &stream{
		service: service, source: source, decoder: kvevents.NewDecoder(), checker: enginehash.NewChecker(service.Hash), rank: noRank,
	}
	s.follower = follow.New(s)
	return s
}

// resume says that the source has what a mark says.
func (s *stream) resume(m *Mark) follow.Ask {
	s.any, s.whole, s.since = true, m.Whole, m.Since
	return s.follower.Resume(m.Mark)
}

// Clear implements follow.Sink.
func (s *stream) Clear() {
	if s.any {
		s.source.Clear()
	}
	s.any, s.whole, s.since, s.announcing = false, false, 0, false
	s.unreadable, s.rank = "", noRank
	s.checker.Reset()
}

// Apply implements follow.Sink.
func (s *stream) Apply(payload []byte) {
	seq := s.follower.State().Next - 1
	if !s.any {
		s.any, s.whole, s.since = true, seq == 0, seq
	}
	batch, refused, err := s.decoder.Decode(payload)
	s.batches++
	s.rejected += uint64(refused) //nolint:gosec // a count
	switch {
	case batch == nil: // it may have taken anything back
		s.rejected++
		s.source.Clear()
		s.whole, s.since, s.unreadable = false, seq+1, fmt.Sprint(err)
		return
	case batch.Doubtful: // the source clears what was known before
		s.whole, s.since, s.unreadable = false, seq, fmt.Sprint(err)
	case err != nil:
		s.unreadable = err.Error()
	}
	s.source.Apply(batch)
	s.look(batch, seq)
}

// look takes what a batch says of its publisher.
func (s *stream) look(batch *kvevents.Batch, seq uint64) {
	if s.announcing && len(batch.Events) == 0 {
		s.announcing = false
	}
	for _, event := range batch.Events {
		switch e := event.(type) {
		case *kvevents.AllBlocksCleared:
			s.whole, s.since, s.unreadable = true, seq, ""
			s.follower.Cleared()
			s.announcing = s.service.Type == contract.TypeMooncake
		case *kvevents.BlockStored:
			if e.BlockSize > 0 && len(e.TokenIDs) == len(e.Hashes)*e.BlockSize {
				s.blockTokens = e.BlockSize
			}
			s.checker.Look(e)
		}
	}
	if batch.Rank != nil && *batch.Rank != s.service.Rank && s.service.Type != contract.TypeMooncake {
		s.rank = *batch.Rank
	}
	s.published = timeOf(batch.Time)
}

// timeOf reads a batch's time: seconds, or milliseconds where they would be far in the
// future.
func timeOf(seconds float64) time.Time {
	const farSeconds = 1e11 // the year 5138
	if seconds > farSeconds {
		seconds /= 1000
	}
	if !(seconds > 0 && seconds < farSeconds) {
		return time.Time{}
	}
	return time.UnixMicro(int64(seconds * 1e6))
}

// faults are what is wrong with what the publisher says, the worst first.
func (s *stream) faults() (faults []string) {
	if s.unreadable != "" {
		faults = append(faults, "something of its events can't be read: "+s.unreadable)
	}
	if declared := s.service.BlockTokens; declared != 0 && s.blockTokens != 0 && declared != s.blockTokens {
		faults = append(faults, fmt.Sprintf("its blocks have %d tokens, and block_size is %d", s.blockTokens, declared))
	}
	if s.rank != noRank {
		faults = append(faults, fmt.Sprintf("it says that it is rank %d, and dp_rank is %d: look whether two ranks share a port", s.rank, s.service.Rank))
	}
	if fault := s.checker.Fault(); fault != "" {
		faults = append(faults, fault)
	}
	return faults
}
