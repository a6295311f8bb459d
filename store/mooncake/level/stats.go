package level

import "github.com/mooncake-sidecar/sidecar/store/mooncake"

// Refusal says why a chunk was not taken to be put.
type Refusal uint8

// The reasons, in the order of Stats.Refused.
const (
	// RefusedDown: the cluster does not answer.
	RefusedDown Refusal = iota
	// RefusedQueue: too much waits already.
	RefusedQueue
	// RefusedFull: the cluster had no room just now.
	RefusedFull
	// RefusedReset: the namespace was reset, and the cluster is left alone for it.
	RefusedReset
	refusals
)

// Refusals is the number of reasons.
const Refusals = refusals

// String returns the reason's name in metrics.
func (r Refusal) String() string {
	return [refusals + 1]string{"down", "queue", "full", "reset", "unknown"}[min(r, refusals)]
}

// Stats counts what a Level did.
type Stats struct {
	// Client is the account of the calls below.
	Client mooncake.Stats
	// Questions is how many calls asked for chunks, Asked of how many, and Found how
	// many of those were there.
	Questions, Asked, Found uint64
	// AskFailed questions were not answered.
	AskFailed uint64
	// PutChunks were put, PutsFailed could not be, by NoRoom of them for want of room.
	PutChunks, PutsFailed, NoRoom uint64
	Refused                       [refusals]uint64
	// GotChunks came, GetsFailed were gone, or could not be had.
	GotChunks, GetsFailed uint64

	// Doubts is how often something was not there that had been concluded to be.
	Doubts uint64
	// Renewed chunks were used here and asked for, so that they stay there; RenewedLate
	// ones had gone.
	Renewed, RenewedLate uint64

	// Gauges.
	QueuedBytes   uint64 // chunks that wait to be put, or are
	FetchingBytes uint64 // chunks that wait to be got, or are
	Health        mooncake.Health
	// InService: the cluster is asked, and takes chunks.
	InService bool

	Events EventStats
}

// Stats returns a snapshot.
func (l *Level) Stats() Stats {
	l.mu.Lock()
	s := l.stats
	s.QueuedBytes, s.FetchingBytes = l.puts.bytes, l.gets.bytes
	l.mu.Unlock()
	s.Client, s.Health, s.InService, s.Events = l.client.Stats(), l.client.Health(), l.inService(), l.eventStats()
	return s
}
