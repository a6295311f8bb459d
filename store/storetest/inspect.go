package storetest

import (
	"context"
	"slices"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// OpenRefs returns the number of references that were not released.
func (f *FakeStore) OpenRefs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.refs)
}

// OpenPuts returns the number of tickets neither ended nor revoked.
func (f *FakeStore) OpenPuts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.tickets)
}

// Published returns the number of puts that were published.
func (f *FakeStore) Published() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.published
}

// Reported returns what ReportFailed was told.
func (f *FakeStore) Reported() []store.FailedChunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reported)
}

// Leases returns the lease of each Get.
func (f *FakeStore) Leases() []store.Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.leases)
}

// Puts returns the items of every PutStart, in order.
func (f *FakeStore) Puts() []store.PutItem {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.puts)
}

// PutOptions returns the options of each PutStart, in order.
func (f *FakeStore) PutOptions() []store.PutOptions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.options)
}

// SetLoading makes the next n Gets answer GetLoading.
func (f *FakeStore) SetLoading(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loading = n
}

// SetLate makes Get answer GetLoading for the chunks that late says so of.
func (f *FakeStore) SetLate(late func(hash kv.Hash) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = late
}

// Awaited returns the chunks whose arrival was waited for.
func (f *FakeStore) Awaited() []store.ChunkKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.awaited)
}

// SetAwait has await wait for what is on its way.
func (f *FakeStore) SetAwait(await func(ctx context.Context)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.await = await
}

// Forget makes every open namespace stale, as a store that started anew does.
// The chunks are kept under the ids that the namespaces get next.
func (f *FakeStore) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	moved := map[chunkKey]*chunk{}
	n := store.NamespaceID(len(f.specs))
	for key, c := range f.chunks {
		key.ns += n
		moved[key] = c
	}
	f.chunks = moved
	for digest, id := range f.names {
		f.names[digest] = id + n
	}
	f.specs = append(make([]*kv.NamespaceSpec, n), f.specs...)
	f.epochs = append(make([]uint64, n), f.epochs...)
}

// Reset drops the namespace's chunks; puts under way are void.
func (f *FakeStore) Reset(ns store.NamespaceID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epochs[ns-1]++
	for key, c := range f.chunks {
		for number, s := range c.shards {
			if key.ns == ns && s.complete {
				f.drop(key, number)
			}
		}
	}
}

// Remove drops a chunk as eviction would; it reports whether it was there.
func (f *FakeStore) Remove(group uint32, hash kv.Hash) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, c := range f.chunks {
		if key.group == group && key.hash == hash {
			for number := range c.shards {
				f.drop(key, number)
			}
			delete(f.chunks, key)
			return true
		}
	}
	return false
}

// Bytes returns a copy of a shard's stored bytes, nil when it is not there.
func (f *FakeStore) Bytes(group uint32, hash kv.Hash, number uint32) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.bytesLocked(group, hash, number))
}

// Flip inverts a bit of a stored byte; it reports whether the shard was there.
func (f *FakeStore) Flip(group uint32, hash kv.Hash, number uint32, at int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.bytesLocked(group, hash, number)
	if b == nil {
		return false
	}
	b[at] ^= 1
	return true
}

func (f *FakeStore) bytesLocked(group uint32, hash kv.Hash, number uint32) []byte {
	for key, c := range f.chunks {
		if s := c.shards[number]; key.group == group && key.hash == hash && s != nil && s.complete {
			return f.data[s.place.Offset : s.place.Offset+uint64(s.place.Bytes)]
		}
	}
	return nil
}
