package embedded

import "fmt"

// State is where a chunk is in its life, the truth while the master runs. Of
// these, only Storing and Active stand in the segment; a master that takes over
// finds a chunk in one of them or not at all.
type State uint8

// The states.
const (
	// Gone: the record number is free.
	Gone State = iota
	// Creating: puts are open and no shard has arrived.
	Creating
	// Storing: some shards are there.
	Storing
	// Active: all shards are there, and lookups find it.
	Active
	// Migrating: it is being copied to another place or tier. It is as good as
	// Active: the old place holds until the copy is whole.
	Migrating
	// Expired: its time is up. Lookups don't find it; it goes when no lease holds
	// it, unless it is stored again before.
	Expired
	// Evicting: its record is void and its slots are given back, but for those that
	// are read. The record number is not given to another chunk before the last
	// lease, reader and put of this one have ended.
	Evicting
	stateCount
)

// Event is something that happens to a chunk.
type Event uint8

// The events.
const (
	// PutGranted: a first put of the chunk was granted.
	PutGranted Event = iota
	// PutsAbandoned: the last open put of a chunk without shards came to nothing.
	PutsAbandoned
	// ShardArrived: a shard was published and others are missing.
	ShardArrived
	// Completed: the last shard was published.
	Completed
	// RecoveredPart and RecoveredWhole: found in an adopted segment.
	RecoveredPart
	RecoveredWhole
	// MoveBegun: a copy to another place began.
	MoveBegun
	// MoveEnded: it is whole and the chunk is at its new place, or was given up.
	MoveEnded
	// TimeUp: the chunk's time to live has passed.
	TimeUp
	// StoredAgain: somebody wanted to store the chunk that had expired.
	StoredAgain
	// Dropped: evicted, removed, reset, or found corrupt.
	Dropped
	// Freed: nobody knows the record number any more, and it is given back.
	Freed
	eventCount
)

// transitions is the whole machine: what is not here can't happen.
var transitions = [stateCount][eventCount]struct {
	allowed bool
	to      State
}{
	Gone: {
		PutGranted:     {true, Creating},
		RecoveredPart:  {true, Storing},
		RecoveredWhole: {true, Active},
	},
	Creating: {
		ShardArrived:  {true, Storing},
		Completed:     {true, Active},
		PutsAbandoned: {true, Evicting},
		// A reset voids the puts.
		Dropped: {true, Evicting},
	},
	Storing: {
		ShardArrived: {true, Storing},
		Completed:    {true, Active},
		// One whose time is up is dropped: it can't be hit anyway.
		Dropped: {true, Evicting},
	},
	Active: {
		MoveBegun: {true, Migrating},
		TimeUp:    {true, Expired},
		Dropped:   {true, Evicting},
	},
	Migrating: {
		MoveEnded: {true, Active},
		TimeUp:    {true, Expired},
		Dropped:   {true, Evicting},
	},
	Expired: {
		StoredAgain: {true, Active},
		Dropped:     {true, Evicting},
	},
	Evicting: {
		Freed: {true, Gone},
	},
}

// Next returns the state after an event, and false for an event that can't
// happen in the state.
func (s State) Next(e Event) (State, bool) {
	if s >= stateCount || e >= eventCount {
		return s, false
	}
	t := transitions[s][e]
	return t.to, t.allowed
}

// after is Next where another event would be our own mistake.
func (s State) after(e Event) State {
	next, ok := s.Next(e)
	if !ok {
		panic(fmt.Sprintf("BUG: a chunk that is %v was told %v", s, e))
	}
	return next
}

// Resident tells whether shards of the chunk are in memory.
func (s State) Resident() bool { return s >= Storing && s <= Expired }

// Whole tells whether lookups find the chunk and every shard can be read.
func (s State) Whole() bool { return s == Active || s == Migrating }

var stateNames = [stateCount]string{"gone", "creating", "storing", "active", "migrating", "expired", "evicting"}

// String returns the state's name in messages.
func (s State) String() string {
	if s < stateCount {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

var eventNames = [eventCount]string{
	"put granted", "puts abandoned", "shard arrived", "completed", "recovered in part", "recovered whole",
	"move begun", "move ended", "time up", "stored again", "dropped", "freed",
}

// String returns the event's name in messages.
func (e Event) String() string {
	if e < eventCount {
		return eventNames[e]
	}
	return fmt.Sprintf("event(%d)", uint8(e))
}
