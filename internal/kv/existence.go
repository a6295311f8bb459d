package kv

import "fmt"

// Existence is what a store can say about a chunk without waiting.
type Existence uint8

const (
	// Absent: no complete copy is known. The zero value, so that a forgotten
	// answer is a miss.
	Absent Existence = iota
	// Present: every shard can be loaded now.
	Present
	// Loading: a slower tier holds it and a promotion is under way; ask again.
	Loading
	// Unknown: only the remote store can tell; the caller must ask it for this
	// range before the lookup can go on.
	Unknown
)

// String returns the lower-case name of the answer.
func (e Existence) String() string {
	switch e {
	case Absent:
		return "absent"
	case Present:
		return "present"
	case Loading:
		return "loading"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("existence(%d)", uint8(e))
}
