package daemon

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/enginehash"
	"github.com/mooncake-sidecar/sidecar/conductor/router"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// nodeStores tells the lookupds of this machine what to keep, for a router. Their
// sockets are files, so that only engines of this machine have one that can be told. It
// implements router.Stores.
type nodeStores struct {
	// dirs are the runtime directories, by engine.
	dirs map[string]string
	// seeds are what PYTHONHASHSEED of the engines may be; the first one of which the store
	// has something is it.
	seeds []string

	mu    sync.Mutex
	nodes map[string]*nodeStore // by directory
}

// nodeStore is a lookupd. Engines of a node share one.
type nodeStore struct {
	*Operator
	// turn is taken by who pins or unpins: what is to be unpinned is what nothing that is
	// pinned has in common with it, and that may change.
	turn chan struct{}
}

// alone calls do while nobody else pins or unpins.
func (s *nodeStore) alone(ctx context.Context, do func() error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("store: wait for others' pins: %w", ctx.Err())
	}
	defer func() { <-s.turn }()
	return do()
}

var _ router.Stores = (*nodeStores)(nil)

func newNodeStores(dirs map[string]string, seeds ...string) *nodeStores {
	return &nodeStores{dirs: dirs, seeds: append([]string{"", "0"}, seeds...), nodes: map[string]*nodeStore{}}
}

// close ends the connections.
func (n *nodeStores) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.nodes {
		_ = s.Close() // nothing is under way
	}
	clear(n.nodes)
}

func (n *nodeStores) store(instance string) (*nodeStore, error) {
	dir, ok := n.dirs[instance]
	if !ok {
		return nil, fmt.Errorf("%w: %s has none on this machine", router.ErrNoStore, instance)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	dir = filepath.Clean(dir)
	if s := n.nodes[dir]; s != nil {
		return s, nil
	}
	o, err := NewOperator(dir)
	if err != nil {
		return nil, fmt.Errorf("store of %s: %w", instance, err)
	}
	s := &nodeStore{o, make(chan struct{}, 1)}
	n.nodes[dir] = s
	return s, nil
}

// held are the keys of a prefix in a store: so many blocks of so many tokens.
type held struct {
	keys           *adminpb.Keys
	blocks, tokens int
}

// each calls use with the keys of a prefix, in each namespace that may be its and with
// each seed that may be the engine's, until use says that it was.
func (n *nodeStores) each(ctx context.Context, instance string, p *router.Prefix, use func(*nodeStore, held) (bool, error)) error {
	if p.LoRA != "" {
		return fmt.Errorf("%w: an adapter's hashes are the engine's alone", router.ErrNoStore)
	}
	o, err := n.store(instance)
	if err != nil {
		return err
	}
	list, err := o.ListNamespaces(ctx, &adminpb.ListNamespacesRequest{})
	switch {
	case errors.Is(err, ErrNotRunning):
		return fmt.Errorf("%w: %w", router.ErrNoStore, err)
	case err != nil:
		return err
	}
	known := false
	for _, entry := range list.GetNamespaces() {
		var spec kv.NamespaceSpec
		if err := json.Unmarshal(entry.GetSpec(), &spec); err != nil {
			return fmt.Errorf("store of %s: a namespace: %w", instance, err)
		}
		if !isModel(&spec, p.Model) && len(list.GetNamespaces()) > 1 {
			continue
		}
		for _, seed := range n.seeds {
			hashes, err := prefixHashes(&spec, seed, p)
			if err != nil {
				continue // nobody can make them but the engine
			}
			known = true
			used, err := use(o, held{&adminpb.Keys{Namespace: entry.GetDigest(), Hashes: hashes}, len(hashes) / spec.HashBytes, spec.HashBlockTokens})
			if used || err != nil {
				return err
			}
		}
	}
	if !known {
		return fmt.Errorf("%w: none of %s keeps %q under hashes that can be made here", router.ErrNoStore, instance, p.Model)
	}
	return nil
}

// isModel tells whether a namespace may be of a model that engines serve under this
// name: by default that is what they were given, or people name its last part.
func isModel(spec *kv.NamespaceSpec, name string) bool {
	return spec.Model == name || path.Base(spec.Model) == path.Base(name)
}

// prefixHashes returns the hashes of a prefix's whole blocks, back to back.
func prefixHashes(spec *kv.NamespaceSpec, seed string, p *router.Prefix) ([]byte, error) {
	hasher, err := enginehash.New(contract.HashProfile{Algorithm: cmp.Or(spec.HashAlgorithm, enginehash.SHA256), Seed: seed})
	if err != nil {
		return nil, err
	}
	if spec.HashBlockTokens <= 0 {
		return nil, fmt.Errorf("%w: blocks of %d tokens", router.ErrNoStore, spec.HashBlockTokens)
	}
	tokens := make([]uint32, 0, len(p.Tokens)/4)
	for part := range slices.Chunk(p.Tokens[:len(p.Tokens)/4*4], 4) {
		tokens = append(tokens, binary.LittleEndian.Uint32(part))
	}
	var before, all []byte
	salt := p.CacheSalt
	for ; len(tokens) >= spec.HashBlockTokens; tokens = tokens[spec.HashBlockTokens:] {
		if before, err = hasher.Next(before, tokens[:spec.HashBlockTokens], salt); err != nil {
			return nil, err
		}
		if len(before) != spec.HashBytes {
			return nil, fmt.Errorf("%w: hashes of %d bytes", router.ErrNoStore, spec.HashBytes)
		}
		all, salt = append(all, before...), ""
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no whole block", router.ErrNoStore)
	}
	return all, nil
}

// Pin implements router.Stores.
func (n *nodeStores) Pin(ctx context.Context, instance string, p *router.Prefix, ttl func() time.Duration) (tokens int, err error) {
	err = n.each(ctx, instance, p, func(s *nodeStore, h held) (bool, error) {
		var reply *adminpb.PinReply
		err := s.alone(ctx, func() (err error) {
			if seconds := math.Ceil(ttl().Seconds()); seconds > 0 {
				reply, err = s.Pin(ctx, &adminpb.PinRequest{Keys: h.keys, Kind: adminpb.PinRequest_KIND_SOFT, TtlSeconds: uint64(seconds)})
			}
			return err
		})
		if err != nil || reply == nil { // nothing was to be pinned
			return reply == nil, err
		}
		found := reply.GetPinned()
		tokens = (h.blocks - int(found.GetMissingHashes())) * h.tokens //nolint:gosec // at most as many as were asked for
		return found.GetAmount().GetChunks() > 0, nil
	})
	return max(tokens, 0), err
}

// Unpin implements router.Stores.
func (n *nodeStores) Unpin(ctx context.Context, instance string, p *router.Prefix, keep func() int) error {
	return n.each(ctx, instance, p, func(s *nodeStore, h held) (done bool, err error) {
		err = s.alone(ctx, func() error {
			kept := min(max(keep(), 0)/h.tokens, h.blocks)
			if done = kept == h.blocks; done {
				return nil
			}
			keys := &adminpb.Keys{Namespace: h.keys.GetNamespace(), Hashes: h.keys.GetHashes()[kept*(len(h.keys.GetHashes())/h.blocks):]}
			reply, err := s.Unpin(ctx, &adminpb.UnpinRequest{Keys: keys})
			done = reply.GetUnpinned().GetAmount().GetChunks() > 0
			return err
		})
		return done, err
	})
}

// Prefetch implements router.Stores.
func (n *nodeStores) Prefetch(ctx context.Context, instance string, p *router.Prefix) error {
	known := false
	err := n.each(ctx, instance, p, func(o *nodeStore, h held) (bool, error) {
		reply, err := o.Prefetch(ctx, &adminpb.PrefetchRequest{Keys: h.keys})
		if errors.Is(err, ErrRefused) { // it has nothing slower than memory
			return false, fmt.Errorf("%w: %w", router.ErrNoStore, err)
		}
		known = known || reply.GetBegunChunks()+reply.GetResidentChunks() > 0
		return known, err
	})
	if err == nil && !known {
		return fmt.Errorf("%w: nothing of it is stored for %s", router.ErrNoStore, instance)
	}
	return err
}
