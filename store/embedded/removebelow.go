package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// holdBelow keeps the disk tier from taking in what a removal may mean.
func (m *Master) holdBelow(sel *selection) (release func()) {
	if m.disk() == nil {
		return func() {}
	}
	return m.lower.tier.Hold(sel.digest, sel.tagText)
}

// forgetWide forgets on the disk what has the scope's namespace or tag.
func (m *Master) forgetWide(done *Removal, sel *selection) {
	if m.disk() == nil {
		return
	}
	switch t := m.lower.tier; {
	case sel.scope.Everything:
		t.ResetAll()
	case sel.tagText != nil:
		done.OnDisk = t.ForgetTag(sel.digest, *sel.tagText)
	default:
		done.OnDisk = t.ForgetNamespace(*sel.digest)
	}
}

// forgetHashes forgets on the disk the chunks of the scope's hashes, in every
// group.
func (m *Master) forgetHashes(sel *selection) (chunks int) {
	if m.disk() == nil {
		return 0
	}
	keys := make([]disk.Key, 0, len(sel.scope.Hashes)*sel.groups)
	for i := range sel.scope.Hashes {
		for group := range sel.groups {
			keys = append(keys, disk.Key{Namespace: *sel.digest, Group: uint16(group), Hash: sel.scope.Hashes[i]})
		}
	}
	return m.lower.tier.ForgetWithTag(sel.tagText, keys...)
}

// forgetOnDisk forgets the chunks of records that are removed for good.
func (m *Master) forgetOnDisk(records func(yield func(rec uint32) bool)) (chunks int) {
	if m.disk() == nil {
		return 0
	}
	var keys []disk.Key
	for rec := range records {
		r := m.seg.peekRecord(rec)
		keys = append(keys, m.diskKeyOf(&r))
	}
	return m.lower.tier.Forget(keys...)
}

// settleTimeout bounds the wait for the disk to take note of a reset or a
// removal. An engine that resets waits longer.
const settleTimeout = 2 * time.Second

// settleTier waits until no restart brings back what was reset or removed.
//
// REQUIRES: the lock is not held.
func (m *Master) settleTier(ctx context.Context) error {
	if m.disk() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return m.lower.tier.Settle(ctx)
}

// removes tells whether removals go to the cluster.
func (m *Master) removes() bool {
	return m.lower != nil && m.lower.cluster != nil && m.lower.cluster.Removes()
}

// removeFaraway has removed from the cluster what a scope names there: all of a
// namespace, or chunks by their hashes. The cluster knows neither tags nor chains: of
// those goes what this node has, see forgetFaraway.
func (m *Master) removeFaraway(done *Removal, sel *selection) {
	if !m.removes() || !sel.anyTag {
		return
	}
	switch {
	case len(sel.scope.Hashes) > 0:
		for i := range sel.scope.Hashes {
			for group := range sel.groups {
				m.forgetFar(done, &disk.Key{Namespace: *sel.digest, Group: uint16(group), Hash: sel.scope.Hashes[i]})
			}
		}
	case sel.digest != nil:
		m.lower.cluster.RemoveAll(*sel.digest)
	default:
		for _, digest := range m.digests() {
			m.lower.cluster.RemoveAll(digest)
		}
	}
}

// settleFaraway makes sure that what the cluster is to remove is removed.
//
// REQUIRES: the lock is not held.
func (m *Master) settleFaraway() error {
	if !m.removes() {
		return nil
	}
	if err := m.lower.cluster.Settle(); err != nil {
		return fmt.Errorf("%w: what the cluster is to remove: %w", disk.ErrUncertain, err)
	}
	return nil
}

// digests returns those of all open namespaces.
func (m *Master) digests() (all [][32]byte) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, ns := range m.namespaces {
		if ns != nil {
			all = append(all, ns.digest)
		}
	}
	return all
}

// forgetFaraway has the chunks of records removed from the cluster.
func (m *Master) forgetFaraway(done *Removal, records func(yield func(rec uint32) bool)) {
	if !m.removes() {
		return
	}
	for rec := range records {
		r := m.seg.peekRecord(rec)
		key := m.diskKeyOf(&r)
		m.forgetFar(done, &key)
	}
}

func (m *Master) forgetFar(done *Removal, key *disk.Key) {
	if !m.lower.cluster.Forget(key) {
		done.InCluster++
	}
}

// stayed is an error if the cluster keeps chunks that were to be removed.
func (d *Removal) stayed() error {
	if d.InCluster == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d stay, which are not in memory any more; name their hashes later, or their namespace", ErrRemovals, d.InCluster)
}
