package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// namespace is a session's name for its namespace in the store. It opens itself
// when it is first needed, and again when the store has forgotten it: a store
// that is away at the registration, or started anew later, costs nothing but
// the jobs of that time.
type namespace struct {
	store store.Store
	spec  *kv.NamespaceSpec

	mu struct {
		sync.Mutex
		opened bool
		ns     store.Namespace
	}
}

func newNamespace(s store.Store, spec *kv.NamespaceSpec) *namespace {
	return &namespace{store: s, spec: spec}
}

// open returns the namespace's name.
func (n *namespace) open(ctx context.Context) (store.Namespace, error) {
	if ns, opened := n.known(); opened {
		return ns, nil
	}
	// Not under the lock: two pipelines may ask at once, and get one answer.
	ns, err := n.store.OpenNamespace(ctx, n.spec)
	if err != nil {
		return store.Namespace{}, err
	}
	n.mu.Lock()
	n.mu.opened, n.mu.ns = true, ns
	n.mu.Unlock()
	return ns, nil
}

// known returns the namespace's name if it is open.
func (n *namespace) known() (ns store.Namespace, opened bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.ns, n.mu.opened
}

// forget makes the next open ask again, unless somebody has done so.
func (n *namespace) forget(stale store.Namespace) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.ns == stale {
		n.mu.opened = false
	}
}

// of returns the namespace's name if that is of the generation, and
// store.ErrStaleNamespace if it is not: the namespace was reset since, or the
// store is another.
func (n *namespace) of(ctx context.Context, generation uint64) (store.Namespace, error) {
	ns, err := n.open(ctx)
	if err == nil && ns.ResetEpoch != generation {
		n.forget(ns) // what is known may be of before
		ns, err = n.open(ctx)
	}
	if err == nil && ns.ResetEpoch != generation {
		err = fmt.Errorf("%w: a job of generation %#x, the namespace is at %#x", store.ErrStaleNamespace, generation, ns.ResetEpoch)
	}
	return ns, err
}

// with makes a call under the namespace's name, once more when that is stale.
// It is not for puts, which are of one generation.
func (n *namespace) with(ctx context.Context, call func(store.Namespace) error) error {
	for attempt := 0; ; attempt++ {
		ns, err := n.open(ctx)
		if err != nil {
			return err
		}
		err = call(ns)
		if !errors.Is(err, store.ErrStaleNamespace) {
			return err
		}
		n.forget(ns)
		if attempt == 1 {
			return err
		}
	}
}
