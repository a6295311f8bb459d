package control

import (
	"context"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// keyList is the chunks that a request's hashes mean: every hash in every group.
type keyList struct {
	ns     store.NamespaceID
	hashes kv.HashBlob
	groups []uint32
}

// target finds the namespace and the chunks of a request.
func (s *Service) target(k *adminpb.Keys) (*keyList, error) {
	entry, err := s.namespace(k.GetNamespace())
	if err != nil {
		return nil, err
	}
	keys, err := checkKeys(entry.Spec, k.GetHashes(), k.GetGroups())
	if err != nil {
		return nil, err
	}
	keys.ns = entry.ID
	return keys, nil
}

// checkKeys reads hashes and groups of a request for a namespace.
func checkKeys(spec *kv.NamespaceSpec, hashes []byte, groups []uint32) (*keyList, error) {
	if len(hashes) == 0 {
		return nil, invalid("hashes: none; give the block hashes that are meant")
	}
	if len(hashes)%spec.HashBytes != 0 {
		return nil, invalid("hashes: %d bytes are no multiple of %d, the length of this namespace's hashes (%s)", len(hashes), spec.HashBytes, spec.HashAlgorithm)
	}
	if n := len(hashes) / spec.HashBytes; n > MaxHashes {
		return nil, invalid("hashes: %d of them, at most %d in one call; split the list", n, MaxHashes)
	}
	if len(groups) > len(spec.Groups) {
		return nil, invalid("groups: %d of them, the namespace has %d", len(groups), len(spec.Groups))
	}
	seen := map[uint32]bool{}
	for _, g := range groups {
		if int64(g) >= int64(len(spec.Groups)) {
			return nil, invalid("groups: %d; the namespace has 0 to %d", g, len(spec.Groups)-1)
		}
		if seen[g] {
			return nil, invalid("groups: %d twice", g)
		}
		seen[g] = true
	}
	if len(groups) == 0 {
		for g := range spec.Groups {
			groups = append(groups, uint32(g))
		}
	}
	blob, err := kv.NewHashBlob(hashes, spec.HashBytes)
	if err != nil {
		return nil, invalid("hashes: %v", err)
	}
	return &keyList{hashes: blob, groups: groups}, nil
}

// batches calls each with the keys of some hashes at a time. A hash's keys, one a
// group, stand together.
func (k *keyList) batches(ctx context.Context, each func(keys []store.ChunkKey) error) error {
	keys := make([]store.ChunkKey, 0, batchKeys)
	for i := range k.hashes.Len() {
		for _, g := range k.groups {
			keys = append(keys, store.ChunkKey{Group: g, Hash: k.hashes.At(i)})
		}
		if len(keys)+len(k.groups) <= batchKeys && i < k.hashes.Len()-1 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := each(keys); err != nil {
			return err
		}
		keys = keys[:0]
	}
	return nil
}

// eachFound calls do with those chunks that wanted lets pass, some at a time, and
// returns how many hashes have none in any group.
func (s *Service) eachFound(ctx context.Context, k *keyList, wanted func(embedded.ChunkState) bool, do func([]store.ChunkKey) error) (missing uint64, err error) {
	err = k.batches(ctx, func(batch []store.ChunkKey) error {
		groups, hashes := make([]uint32, len(batch)), make([]kv.Hash, len(batch))
		for i := range batch {
			groups[i], hashes[i] = batch[i].Group, batch[i].Hash
		}
		states, err := s.cfg.Store.Inspect(k.ns, groups, hashes)
		if err != nil {
			return err
		}
		var found []store.ChunkKey
		for i := 0; i < len(batch); i += len(k.groups) {
			before := len(found)
			for j := i; j < i+len(k.groups); j++ {
				if wanted(states[j]) {
					found = append(found, batch[j])
				}
			}
			if len(found) == before {
				missing++
			}
		}
		if len(found) == 0 {
			return nil
		}
		return do(found)
	})
	return missing, err
}

// whole lets chunks pass that can be loaded, stored those of which anything is
// here.
func whole(state embedded.ChunkState) bool {
	return state == embedded.ChunkPresent || state == embedded.ChunkFailed
}
func stored(state embedded.ChunkState) bool { return state != embedded.ChunkAbsent }
