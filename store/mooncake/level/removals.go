package level

import (
	"context"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// Leave implements embedded.Cluster.
func (l *Level) Leave(digest [32]byte) {
	v, _ := l.spaces.Load(digest)
	old, ok := v.(*space)
	if !ok {
		return
	}
	next := &space{spec: old.spec, name: old.name, left: true} // until Reset has come through
	l.setSpace(digest, next)
	if !old.left && !l.opts.ResetCluster {
		l.tellLeft(next)
	}
}

// Reset implements embedded.Cluster. What is in the cluster is removed if that was
// asked for; it is not used before it is gone, however long that takes.
func (l *Level) Reset(ctx context.Context, digest [32]byte) error {
	v, _ := l.spaces.Load(digest)
	old, ok := v.(*space)
	if !ok || !l.opts.ResetCluster {
		return nil
	}
	if old.name == (store.Namespace{}) {
		return nil // it was never shared
	}
	_, err := l.client.Reset(ctx, old.name)
	name, opening := l.client.OpenNamespace(context.WithoutCancel(ctx), old.spec)
	if opening != nil {
		return fmt.Errorf("reset in the cluster: %w", opening)
	}
	if name.ResetEpoch == old.name.ResetEpoch { // nothing is owed: what is there stays unused
		return fmt.Errorf("reset in the cluster: %w", err)
	}
	// Unless it was left again meanwhile.
	l.replaceSpace(digest, old, &space{spec: old.spec, name: name})
	if err != nil {
		// The client owes the removal, and finds nothing until it is made.
		l.opts.Log.Warn("a reset is not through in the Mooncake cluster yet; until it is, the cluster is not used for the model", "model", old.spec.Model, "error", err)
	}
	return nil
}

// Removes implements embedded.Cluster: what is an operator's to remove there is told by
// what a reset removes.
func (l *Level) Removes() bool { return l.opts.ResetCluster }

// RemoveAll implements embedded.Cluster. What was put or asked before is void, and
// nothing of the namespace is there before the removal is through.
func (l *Level) RemoveAll(digest [32]byte) {
	s := l.spaceOf(digest)
	if s == nil {
		return
	}
	if !l.begin(Note{Namespace: digest, All: true}, func() bool { return l.client.Soil(s.name) == nil }) { // it was reset meanwhile
		return
	}
	l.replaceSpace(digest, s, &space{spec: s.spec, name: s.name})
	l.opts.Log.Info("what the Mooncake cluster has of a model is being removed", "model", s.spec.Model)
}

// Forget implements embedded.Cluster: what came from there, or went there, and is bad,
// or an operator removes, is removed as far as nobody reads it, and not used before.
func (l *Level) Forget(key *disk.Key) bool {
	s := l.spaceOf(key.Namespace)
	if s == nil {
		return true
	}
	// Before, so that it is no fault of the events' that it is denied; and behind, for what was
	// asked before it was.
	l.void(s, uint32(key.Group), &key.Hash)
	taken := l.begin(noteOf(key), func() bool { return l.client.Owe(s.name, uint32(key.Group), &key.Hash) })
	if !taken {
		return false
	}
	l.void(s, uint32(key.Group), &key.Hash)
	return true
}
