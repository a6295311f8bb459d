package embedded

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// ChunkState is what an operator is told about a chunk: more than the lookup's
// present and absent.
type ChunkState uint8

// The states; they travel as bytes.
const (
	// ChunkAbsent: it is not here, or nothing of it has arrived yet.
	ChunkAbsent ChunkState = iota
	// ChunkPresent: every shard can be loaded.
	ChunkPresent
	// ChunkPartial: some shards are here, so that nobody can load it.
	ChunkPartial
	// ChunkFailed: every shard is here, but a load has failed and the next
	// lookup is told that it is absent.
	ChunkFailed
	// ChunkOnDisk: it is not whole in memory, but on the disk. A lookup counts it as
	// present as long as the disk is quick enough.
	ChunkOnDisk
	// ChunkInCluster: it is on none of this node's tiers, and the cluster was known to
	// have it a moment ago.
	ChunkInCluster
)

// NamespaceEntry is a namespace of the store.
type NamespaceEntry struct {
	ID     store.NamespaceID
	Digest [32]byte          // of the spec
	Spec   *kv.NamespaceSpec // not to be changed
}

// Namespaces returns the namespaces by number.
func (m *Master) Namespaces() []NamespaceEntry {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var entries []NamespaceEntry
	for i, ns := range m.namespaces {
		if ns != nil {
			entries = append(entries, NamespaceEntry{ID: store.NamespaceID(i), Digest: ns.digest, Spec: ns.spec})
		}
	}
	return entries
}

// Inspect returns the state of each chunk. Unlike a lookup it leaves no trace.
func (m *Master) Inspect(id store.NamespaceID, groups []uint32, hashes []kv.Hash) ([]ChunkState, error) {
	states := make([]ChunkState, len(groups))
	step := m.opts.steps.items
	for from, first := 0, true; from < len(groups) || first; from, first = from+step, false {
		if !first {
			m.betweenSteps()
		}
		to := min(from+step, len(groups))
		if err := m.inspectSome(id, groups[from:to], hashes[from:to], states[from:to]); err != nil {
			return nil, err
		}
	}
	return states, nil
}

func (m *Master) inspectSome(id store.NamespaceID, groups []uint32, hashes []kv.Hash, states []ChunkState) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	ns, err := m.namespaceLocked(id)
	if err != nil {
		return err
	}
	for i, g := range groups {
		if int(g) >= len(ns.groups) {
			return fmt.Errorf("%w: inspect group %d of %d", ErrOption, g, len(ns.groups))
		}
		rec, ok := m.findLocked(id, g, &hashes[i])
		if !ok {
			continue
		}
		switch live := &m.live[rec]; {
		case live.state == Storing:
			states[i] = ChunkPartial
		case live.state.Whole() && m.faces.has(rec, faceMissOnce):
			states[i] = ChunkFailed
		case live.state.Whole() && !m.expiredLocked(rec):
			states[i] = ChunkPresent
		}
	}
	m.inspectBelowLocked(id, groups, hashes, states)
	return nil
}

// inspectBelowLocked looks below for what memory does not have.
func (m *Master) inspectBelowLocked(id store.NamespaceID, groups []uint32, hashes []kv.Hash, states []ChunkState) {
	if m.lower == nil {
		return
	}
	sources, n := m.lower.sources()
	for i, g := range groups {
		if states[i] != ChunkAbsent && states[i] != ChunkPartial {
			continue
		}
		key := m.diskKey(id, g, &hashes[i])
		for _, source := range sources[:n] {
			if _, there := source.Offers(&key); there {
				states[i] = ChunkOnDisk
				if source == Lower(m.lower.cluster) {
					states[i] = ChunkInCluster
				}
				break
			}
		}
	}
}

// Namespaces implements storepb.StoreServer.
func (s *Service) Namespaces(context.Context, *storepb.NamespacesRequest) (*storepb.NamespacesReply, error) {
	reply := &storepb.NamespacesReply{}
	for _, entry := range s.master.Namespaces() {
		spec, err := json.Marshal(entry.Spec)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "namespace %d: %v", entry.ID, err)
		}
		reply.Namespaces = append(reply.Namespaces, &storepb.NamespacesReply_Entry{Id: uint32(entry.ID), Spec: spec})
	}
	return reply, nil
}

// Inspect implements storepb.StoreServer.
func (s *Service) Inspect(_ context.Context, r *storepb.InspectRequest) (*storepb.InspectReply, error) {
	n, err := checkColumns(r.GetHashes(), len(r.GetGroups()))
	if err != nil {
		return nil, err
	}
	hashes := make([]kv.Hash, n)
	for i := range hashes {
		hashes[i] = hashAt(r.GetHashes(), i)
	}
	states, err := s.master.Inspect(store.NamespaceID(r.GetNamespace()), r.GetGroups(), hashes)
	if err != nil {
		return nil, s.rpcError(err)
	}
	reply := &storepb.InspectReply{States: make([]byte, n)}
	for i, state := range states {
		reply.States[i] = byte(state)
	}
	return reply, nil
}
