package native

import (
	"fmt"
	"maps"
	"sync"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Notice is how an engine's client is, for those who call and those who wait for
// news. S is the calls of one client, from its readiness to its end.
type Notice[S any] struct {
	mu      sync.Mutex
	session *S // nil when no client is ready
	health  mooncake.Health
	changed chan struct{} // closed and replaced when health changes
}

// NewNotice returns a notice of an engine that has not begun, for that reason.
func NewNotice[S any](reason string) *Notice[S] {
	return &Notice[S]{changed: make(chan struct{}), health: mooncake.Health{Reason: reason}}
}

// Set notes what became of the client; session is nil when there is none.
func (n *Notice[S]) Set(session *S, health mooncake.Health) {
	n.mu.Lock()
	defer n.mu.Unlock()
	health.Starts = n.health.Starts
	if session != nil {
		health.Starts++
	}
	n.session, n.health = session, health
	n.tellLocked()
}

// Tell tells who waits that the session says something else.
func (n *Notice[S]) Tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tellLocked()
}

func (n *Notice[S]) tellLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// Changed returns a channel that is closed at the next Set or Tell.
func (n *Notice[S]) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// Health returns what was set last, and the session.
func (n *Notice[S]) Health() (mooncake.Health, *S) {
	n.mu.Lock()
	defer n.mu.Unlock()
	health := n.health
	health.Versions = maps.Clone(health.Versions)
	return health, n.session
}

// Session returns the session that takes a call.
func (n *Notice[S]) Session(op string) (*S, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session == nil {
		return nil, fmt.Errorf("mooncake: %s: %w: %s", op, store.ErrUnavailable, n.health.Reason)
	}
	return n.session, nil
}
