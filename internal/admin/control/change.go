package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// total sums up what the batches of a call did.
type total struct {
	chunks int
	bytes  uint64
}

func (t *total) add(chunks int, bytes uint64) { t.chunks, t.bytes = t.chunks+chunks, t.bytes+bytes }

func (t *total) amount() *adminpb.Amount { return amount(t.chunks, t.bytes) }

// stopped is an error with what was done before it.
func (s *Service) stopped(err error, done *total, what string) error {
	if done.chunks == 0 {
		return s.rpcError(err)
	}
	return s.rpcError(fmt.Errorf("%w (%d chunks of %d bytes were %s before)", err, done.chunks, done.bytes, what))
}

// evictChunks is how many chunks the store is told to evict at a time.
const evictChunks = 4096

// Evict implements adminpb.AdminServer.
func (s *Service) Evict(ctx context.Context, r *adminpb.EvictRequest) (*adminpb.EvictReply, error) {
	const most = 1 << 40
	if (r.GetBytes() > 0) == (r.GetChunks() > 0) || r.GetChunks() > most {
		return nil, invalid("bytes %d, chunks %d; give one of them, above 0", r.GetBytes(), r.GetChunks())
	}
	var gone total
	busy, err := s.evict(ctx, r, &gone)
	s.cfg.Log.Info("evicted at an operator's request", "chunks", gone.chunks, "bytes", gone.bytes, "asked_chunks", r.GetChunks(), "asked_bytes", r.GetBytes())
	if err != nil {
		return nil, s.stopped(err, &gone, "evicted")
	}
	return &adminpb.EvictReply{
		Evicted: gone.amount(), Short: gone.bytes < r.GetBytes() || uint64(gone.chunks) < r.GetChunks(), BusyChunks: uint64(busy),
	}, nil
}

// evict evicts some chunks at a time until there are as many as are wanted, or no
// more.
func (s *Service) evict(ctx context.Context, r *adminpb.EvictRequest, gone *total) (busy int, err error) {
	for uint64(gone.chunks) < r.GetChunks() || gone.bytes < r.GetBytes() {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		limit := embedded.EvictLimit{Chunks: evictChunks, Bytes: r.GetBytes() - min(gone.bytes, r.GetBytes())}
		if r.GetChunks() > 0 {
			limit.Chunks = min(evictChunks, int(r.GetChunks())-gone.chunks)
		}
		step, err := s.cfg.Store.Evict(limit)
		gone.add(step.Chunks, step.Bytes)
		if err != nil {
			return 0, err
		}
		if step.Chunks < limit.Chunks {
			return step.Busy, nil
		}
	}
	return 0, nil
}

// Pin implements adminpb.AdminServer.
func (s *Service) Pin(ctx context.Context, r *adminpb.PinRequest) (*adminpb.PinReply, error) {
	keys, err := s.target(r.GetKeys())
	if err != nil {
		return nil, err
	}
	kind := embedded.PinSoft
	switch r.GetKind() {
	case adminpb.PinRequest_KIND_SOFT:
	case adminpb.PinRequest_KIND_HARD:
		kind = embedded.PinHard
	default:
		return nil, invalid("kind: %v; want KIND_SOFT or KIND_HARD", r.GetKind())
	}
	if err := checkTTL(r.GetTtlSeconds()); err != nil {
		return nil, err
	}
	ttl := time.Duration(r.GetTtlSeconds()) * time.Second
	var pinned total
	missing, err := s.eachFound(ctx, keys, whole, func(found []store.ChunkKey) error {
		n, err := s.cfg.Store.Pin(keys.ns, found, kind, ttl)
		pinned.add(n.Pinned, n.Bytes)
		return err
	})
	s.cfg.Log.Info("pinned at an operator's request", "namespace", keys.ns, "kind", r.GetKind(), "ttl", ttl, "chunks", pinned.chunks, "bytes", pinned.bytes)
	if err != nil {
		return nil, s.stopped(err, &pinned, "pinned")
	}
	return &adminpb.PinReply{Pinned: &adminpb.Found{Amount: pinned.amount(), MissingHashes: missing}}, nil
}

// Unpin implements adminpb.AdminServer.
func (s *Service) Unpin(ctx context.Context, r *adminpb.UnpinRequest) (*adminpb.UnpinReply, error) {
	keys, err := s.target(r.GetKeys())
	if err != nil {
		return nil, err
	}
	var unpinned total
	missing, err := s.eachFound(ctx, keys, stored, func(found []store.ChunkKey) error {
		n, err := s.cfg.Store.Unpin(keys.ns, found)
		unpinned.add(n.Pinned, n.Bytes)
		return err
	})
	s.cfg.Log.Info("unpinned at an operator's request", "namespace", keys.ns, "chunks", unpinned.chunks, "bytes", unpinned.bytes)
	if err != nil {
		return nil, s.stopped(err, &unpinned, "unpinned")
	}
	return &adminpb.UnpinReply{Unpinned: &adminpb.Found{Amount: unpinned.amount(), MissingHashes: missing}}, nil
}

// Prefetch implements adminpb.AdminServer.
func (s *Service) Prefetch(ctx context.Context, r *adminpb.PrefetchRequest) (*adminpb.PrefetchReply, error) {
	keys, err := s.target(r.GetKeys())
	if err != nil {
		return nil, err
	}
	reply := &adminpb.PrefetchReply{}
	if _, err = s.eachFound(ctx, keys, whole, func(found []store.ChunkKey) error {
		reply.ResidentChunks += uint64(len(found))
		return nil
	}); err != nil {
		return nil, s.rpcError(err)
	}
	var begun total
	_, err = s.eachFound(ctx, keys, func(state embedded.ChunkState) bool { return !whole(state) }, func(wanted []store.ChunkKey) error {
		n, err := s.cfg.Store.PrefetchAll(ctx, keys.ns, wanted)
		begun.add(n, 0)
		return err
	})
	if err != nil {
		return nil, s.stopped(err, &begun, "begun")
	}
	reply.BegunChunks = uint64(begun.chunks)
	return reply, nil
}

// Remove implements adminpb.AdminServer.
func (s *Service) Remove(ctx context.Context, r *adminpb.RemoveRequest) (*adminpb.RemoveReply, error) {
	scope := embedded.Scope{}
	if len(r.GetNamespace()) > 0 {
		entry, err := s.namespace(r.GetNamespace())
		if err != nil {
			return nil, err
		}
		scope.Namespace = &entry.ID
	}
	reply := &adminpb.RemoveReply{}
	var removed total
	var err error
	remove := func(scope embedded.Scope) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.cfg.Store.Remove(ctx, scope)
		removed.add(n.Chunks, n.Bytes)
		reply.DiskChunks += uint64(n.OnDisk)
		return err
	}
	switch wanted := r.GetScope().(type) {
	case *adminpb.RemoveRequest_Everything:
		if !wanted.Everything || scope.Namespace == nil {
			return nil, invalid("everything goes of one namespace at a time; name it, and set everything")
		}
		// First the removal, which counts what goes. What is stored behind its back
		// goes with the reset, and what engines are computing is not stored later.
		if err = remove(scope); err == nil || errors.Is(err, disk.ErrUncertain) {
			err = cmp.Or(err, s.cfg.Store.Reset(*scope.Namespace))
		}
	case *adminpb.RemoveRequest_Tag:
		if err := checkTag(wanted.Tag); err != nil {
			return nil, err
		}
		scope.SaltTag = &wanted.Tag
		err = remove(scope)
	case *adminpb.RemoveRequest_Hashes_:
		if scope.Namespace == nil {
			return nil, invalid("namespace: missing; hashes are a namespace's")
		}
		reply.MissingHashes, err = s.removeHashes(ctx, r, scope, remove)
	default:
		return nil, invalid("scope: missing; want everything, tag or hashes")
	}
	s.cfg.Log.Info("removed at an operator's request", "scope", fmt.Sprintf("%T", r.GetScope()), "chunks", removed.chunks, "bytes", removed.bytes,
		"disk_chunks", reply.GetDiskChunks())
	if err != nil {
		return nil, s.stopped(err, &removed, "removed")
	}
	reply.Removed = removed.amount()
	return reply, nil
}

// removeHashes removes the chunks of hashes, whether anything is known of them or
// not: a disk tier that is out of service has them all the same. All go at once, so
// that the disk is waited for once.
func (s *Service) removeHashes(ctx context.Context, r *adminpb.RemoveRequest, scope embedded.Scope, remove func(embedded.Scope) error) (missing uint64, err error) {
	keys, err := s.target(&adminpb.Keys{Namespace: r.GetNamespace(), Hashes: r.GetHashes().GetHashes()})
	if err != nil {
		return 0, err
	}
	scope.Chain = r.GetHashes().GetChain()
	if scope.Chain && keys.hashes.Len() > MaxChainHashes {
		return 0, invalid("hashes: %d of them, at most %d where whole chains go; name the first of each chain", keys.hashes.Len(), MaxChainHashes)
	}
	missing, err = s.eachFound(ctx, keys, stored, func([]store.ChunkKey) error { return nil })
	if err != nil {
		return 0, err
	}
	scope.Hashes = make([]kv.Hash, keys.hashes.Len())
	for i := range scope.Hashes {
		scope.Hashes[i] = keys.hashes.At(i)
	}
	return missing, remove(scope)
}

// SetQuota implements adminpb.AdminServer.
func (s *Service) SetQuota(_ context.Context, r *adminpb.SetQuotaRequest) (*adminpb.SetQuotaReply, error) {
	owner := embedded.Owner{Tag: r.GetTag()}
	switch {
	case (len(r.GetNamespace()) > 0) == (r.GetTag() != ""):
		return nil, invalid("a quota is a namespace's or a salt tag's; name one of them")
	case r.GetTag() != "":
		if err := checkTag(r.GetTag()); err != nil {
			return nil, err
		}
	default:
		entry, err := s.namespace(r.GetNamespace())
		if err != nil {
			return nil, err
		}
		owner.Namespace = entry.ID
	}
	if err := s.cfg.Store.SetQuota(owner, r.GetBytes()); err != nil {
		return nil, s.rpcError(err)
	}
	s.cfg.Log.Info("quota set by an operator", "namespace", owner.Namespace, "tag", owner.Tag, "bytes", r.GetBytes())
	return &adminpb.SetQuotaReply{}, nil
}

// SetTTL implements adminpb.AdminServer.
func (s *Service) SetTTL(_ context.Context, r *adminpb.SetTTLRequest) (*adminpb.SetTTLReply, error) {
	entry, err := s.namespace(r.GetNamespace())
	if err != nil {
		return nil, err
	}
	if err := checkTTL(r.GetTtlSeconds()); err != nil {
		return nil, err
	}
	ttl := time.Duration(r.GetTtlSeconds()) * time.Second
	if err := s.cfg.Store.SetDefaultTTL(entry.ID, ttl); err != nil {
		return nil, s.rpcError(err)
	}
	s.cfg.Log.Info("time to live set by an operator", "namespace", entry.ID, "ttl", ttl)
	return &adminpb.SetTTLReply{}, nil
}

// SetDraining implements adminpb.AdminServer.
func (s *Service) SetDraining(_ context.Context, r *adminpb.SetDrainingRequest) (*adminpb.SetDrainingReply, error) {
	s.cfg.Store.Drain(r.GetDraining())
	s.cfg.Log.Info("draining set by an operator", "draining", r.GetDraining())
	return &adminpb.SetDrainingReply{OpenPuts: uint64(s.cfg.Stats().OpenPuts)}, nil
}
