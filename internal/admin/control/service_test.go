package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// Every refusal has its code and says something that helps, and the store is
// asked to change nothing.
func TestRefusals(t *testing.T) {
	f := newFake(t)
	s, ctx := f.service(), t.Context()
	keys := func(ns int, hashes []byte, groups ...uint32) *adminpb.Keys {
		return &adminpb.Keys{Namespace: f.digest(ns), Hashes: hashes, Groups: groups}
	}
	pin := func(k *adminpb.Keys, kind adminpb.PinRequest_Kind, ttl uint64) func() error {
		return func() error {
			_, err := s.Pin(ctx, &adminpb.PinRequest{Keys: k, Kind: kind, TtlSeconds: ttl})
			return err
		}
	}
	remove := func(r *adminpb.RemoveRequest) func() error {
		return func() error { _, err := s.Remove(ctx, r); return err }
	}
	quota := func(ns []byte, tag string) func() error {
		return func() error {
			_, err := s.SetQuota(ctx, &adminpb.SetQuotaRequest{Namespace: ns, Tag: tag, Bytes: 1})
			return err
		}
	}
	const soft, hard = adminpb.PinRequest_KIND_SOFT, adminpb.PinRequest_KIND_HARD
	one := hashesOf(0, 1, 16)
	for name, c := range map[string]struct {
		call func() error
		code codes.Code
		says string
	}{
		"no keys":             {pin(nil, soft, 0), codes.InvalidArgument, "ListNamespaces"},
		"short digest":        {pin(&adminpb.Keys{Namespace: []byte{1}}, soft, 0), codes.InvalidArgument, "want 32"},
		"unknown namespace":   {pin(&adminpb.Keys{Namespace: make([]byte, 32), Hashes: one}, soft, 0), codes.NotFound, "ListNamespaces"},
		"no hashes":           {pin(keys(1, nil), soft, 0), codes.InvalidArgument, "none"},
		"broken hash":         {pin(keys(1, one[:15]), soft, 0), codes.InvalidArgument, "no multiple of 16"},
		"too many hashes":     {pin(keys(1, make([]byte, 16*(MaxHashes+1))), soft, 0), codes.InvalidArgument, "split the list"},
		"group out of range":  {pin(keys(1, one, 2), soft, 0), codes.InvalidArgument, "0 to 1"},
		"group twice":         {pin(keys(1, one, 1, 1), soft, 0), codes.InvalidArgument, "twice"},
		"too many groups":     {pin(keys(1, one, 0, 1, 0), soft, 0), codes.InvalidArgument, "has 2"},
		"no kind":             {pin(keys(1, one), 0, 0), codes.InvalidArgument, "KIND_SOFT"},
		"kind out of range":   {pin(keys(1, one), 9, 0), codes.InvalidArgument, "KIND_HARD"},
		"long ttl":            {pin(keys(1, one), hard, MaxTTLSeconds+1), codes.InvalidArgument, "ttl_seconds"},
		"evict nothing":       {func() error { _, err := s.Evict(ctx, &adminpb.EvictRequest{}); return err }, codes.InvalidArgument, "one of them"},
		"evict both":          {func() error { _, err := s.Evict(ctx, &adminpb.EvictRequest{Bytes: 1, Chunks: 1}); return err }, codes.InvalidArgument, "one of them"},
		"evict too many":      {func() error { _, err := s.Evict(ctx, &adminpb.EvictRequest{Chunks: 1 << 63}); return err }, codes.InvalidArgument, "chunks"},
		"no scope":            {remove(&adminpb.RemoveRequest{Namespace: f.digest(0)}), codes.InvalidArgument, "scope"},
		"everything, nowhere": {remove(&adminpb.RemoveRequest{Scope: &adminpb.RemoveRequest_Everything{Everything: true}}), codes.InvalidArgument, "one namespace"},
		"not everything": {
			remove(&adminpb.RemoveRequest{Namespace: f.digest(0), Scope: &adminpb.RemoveRequest_Everything{}}), codes.InvalidArgument, "set everything",
		},
		"no tag":              {remove(&adminpb.RemoveRequest{Scope: &adminpb.RemoveRequest_Tag{}}), codes.InvalidArgument, "tag"},
		"long tag":            {remove(&adminpb.RemoveRequest{Scope: &adminpb.RemoveRequest_Tag{Tag: strings.Repeat("x", MaxTagBytes+1)}}), codes.InvalidArgument, "4097 bytes"},
		"tag that is no text": {quota(nil, "\xff"), codes.InvalidArgument, "UTF-8"},
		"hashes of no namespace": {
			remove(&adminpb.RemoveRequest{Scope: &adminpb.RemoveRequest_Hashes_{Hashes: &adminpb.RemoveRequest_Hashes{Hashes: one}}}), codes.InvalidArgument, "namespace",
		},
		"too many chains": {remove(&adminpb.RemoveRequest{Namespace: f.digest(1), Scope: &adminpb.RemoveRequest_Hashes_{
			Hashes: &adminpb.RemoveRequest_Hashes{Hashes: hashesOf(0, MaxChainHashes+1, 16), Chain: true},
		}}), codes.InvalidArgument, "first of each chain"},
		"quota of nobody": {quota(nil, ""), codes.InvalidArgument, "name one"},
		"quota of two":    {quota(f.digest(0), "t"), codes.InvalidArgument, "name one"},
		"top 0":           {func() error { _, err := s.TopPrefixes(ctx, &adminpb.TopPrefixesRequest{}); return err }, codes.InvalidArgument, "1 to 1000"},
		"top too many":    {func() error { _, err := s.TopPrefixes(ctx, &adminpb.TopPrefixesRequest{Limit: 1001}); return err }, codes.InvalidArgument, "1 to 1000"},
		"ttl of nothing":  {func() error { _, err := s.SetTTL(ctx, &adminpb.SetTTLRequest{}); return err }, codes.InvalidArgument, "namespace"},
		"ttl too long": {func() error {
			_, err := s.SetTTL(ctx, &adminpb.SetTTLRequest{Namespace: f.digest(0), TtlSeconds: 1 << 40})
			return err
		}, codes.InvalidArgument, "ttl_seconds"},
		"no settings": {func() error { _, err := New(Config{}).GetConfiguration(ctx, nil); return err }, codes.FailedPrecondition, "configuration"},
	} {
		err := c.call()
		if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.code, c.says)
		}
	}
	if len(f.said) > 0 {
		t.Errorf("the store was told %q", f.said)
	}
}

// What the store refuses comes out with a code.
func TestStoreErrors(t *testing.T) {
	f := newFake(t)
	f.put(0, 0, 1, embedded.ChunkPresent)
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{embedded.ErrPinBudget, codes.ResourceExhausted},
		{embedded.ErrQuotaTable, codes.ResourceExhausted},
		{embedded.ErrRemovals, codes.ResourceExhausted},
		{embedded.ErrNoTier, codes.FailedPrecondition},
		{store.ErrStaleNamespace, codes.NotFound},
		{embedded.ErrOption, codes.InvalidArgument},
		{embedded.ErrScope, codes.InvalidArgument},
		{disk.ErrUncertain, codes.Unavailable},
		{errors.New("other"), codes.Internal},
	} {
		f.fail = fmt.Errorf("the reason: %w", c.err)
		s := f.service()
		var log bytes.Buffer
		s.cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		_, err := s.Pin(t.Context(), &adminpb.PinRequest{Keys: &adminpb.Keys{Namespace: f.digest(1), Hashes: hashesOf(0, 1, 16)}, Kind: adminpb.PinRequest_KIND_HARD})
		if status.Code(err) != c.code || !strings.Contains(err.Error(), "the reason") {
			t.Errorf("%v: %v", c.err, err)
		}
		if logged := strings.Contains(log.String(), "the reason"); logged != (c.code == codes.Internal) {
			t.Errorf("%v is in the log: %v", c.err, logged)
		}
	}
}

// A call that was given up does not begin, nor does it go on.
func TestGivenUp(t *testing.T) {
	f := newFake(t)
	f.put(0, 0, 1, embedded.ChunkPresent)
	f.gone = embedded.Removal{Chunks: evictChunks, Bytes: 1}
	s, keys := f.service(), &adminpb.Keys{Namespace: f.digest(1), Hashes: hashesOf(0, 1, 16)}
	everything := &adminpb.RemoveRequest{Namespace: f.digest(1), Scope: &adminpb.RemoveRequest_Everything{Everything: true}}
	for name, call := range map[string]func(ctx context.Context) error{
		"unpin": func(ctx context.Context) error { _, err := s.Unpin(ctx, &adminpb.UnpinRequest{Keys: keys}); return err },
		"evict": func(ctx context.Context) error {
			_, err := s.Evict(ctx, &adminpb.EvictRequest{Chunks: 1 << 30})
			return err
		},
		"remove": func(ctx context.Context) error { _, err := s.Remove(ctx, everything); return err },
	} {
		if err := call(cancelled(t)); status.Code(err) != codes.Canceled || len(f.said) > 0 {
			t.Errorf("%s: %v, the store was told %q", name, err, f.said)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	f.heard = func() {
		if len(f.said) == 3 {
			stop()
		}
	}
	if _, err := s.Evict(ctx, &adminpb.EvictRequest{Bytes: 1 << 40}); status.Code(err) != codes.Canceled || len(f.said) != 3 || !strings.Contains(err.Error(), fmt.Sprint(3*evictChunks, " chunks")) {
		t.Errorf("after %d parts: %v", len(f.said), err)
	}
}

// A hash stands for its chunks in all groups; those that are not there are not
// the store's to hear of.
func TestPin(t *testing.T) {
	f := newFake(t)
	f.put(0, 0, 3, embedded.ChunkPresent)
	f.put(1, 2, 1, embedded.ChunkFailed)
	f.put(1, 0, 1, embedded.ChunkPartial)
	s := f.service()
	request := &adminpb.PinRequest{Keys: &adminpb.Keys{Namespace: f.digest(1), Hashes: hashesOf(0, 5, 16)}, Kind: adminpb.PinRequest_KIND_HARD, TtlSeconds: 60}
	reply, err := s.Pin(t.Context(), request)
	if err != nil || reply.GetPinned().GetAmount().GetChunks() != 4 || reply.GetPinned().GetAmount().GetBytes() != 4*chunkBytes || reply.GetPinned().GetMissingHashes() != 2 {
		t.Errorf("%v, %v", reply, err)
	}
	request.Keys.Groups = []uint32{1}
	if reply, err = s.Pin(t.Context(), request); err != nil || reply.GetPinned().GetAmount().GetChunks() != 1 || reply.GetPinned().GetMissingHashes() != 4 {
		t.Errorf("%v, %v", reply, err)
	}
	want := []string{"pin 1: 4 keys kind 2 for 1m0s", "pin 1: 1 keys kind 2 for 1m0s"}
	if !slices.Equal(f.said, want) {
		t.Errorf("the store was told %q", f.said)
	}
}

// A long list reaches the store in parts, and what was done before a refusal is
// told.
func TestLongListsComeInParts(t *testing.T) {
	f := newFake(t)
	n := batchKeys + 100
	f.put(0, 0, n, embedded.ChunkPresent)
	f.put(1, 0, n, embedded.ChunkPresent)
	keys := &adminpb.Keys{Namespace: f.digest(1), Hashes: hashesOf(0, n, 16)}
	s := f.service()
	reply, err := s.Unpin(t.Context(), &adminpb.UnpinRequest{Keys: keys})
	if err != nil || reply.GetUnpinned().GetAmount().GetChunks() != uint64(2*n) || len(f.said) != 3 {
		t.Errorf("%v, %v, %q", reply, err, f.said)
	}
	removed, err := s.Remove(t.Context(), &adminpb.RemoveRequest{Namespace: f.digest(1), Scope: &adminpb.RemoveRequest_Hashes_{
		Hashes: &adminpb.RemoveRequest_Hashes{Hashes: append(hashesOf(0, 2, 16), hashesOf(60000, 1, 16)...), Chain: true},
	}})
	if err != nil || removed.GetRemoved().GetChunks() != 2 || removed.GetMissingHashes() != 1 || removed.GetDiskChunks() != 7 ||
		f.said[3] != "remove 1 - 3 hashes chain true everything false" {
		t.Errorf("%v, %v, %q", removed, err, f.said)
	}
	f.said = nil
	pins := 0
	f2 := &failingPins{fakeStore: f, after: 2, calls: &pins}
	s.cfg.Store = f2
	_, err = s.Pin(t.Context(), &adminpb.PinRequest{Keys: keys, Kind: adminpb.PinRequest_KIND_HARD})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "8192 chunks of 8192000 bytes were pinned before") {
		t.Errorf("%v", err)
	}
}

// failingPins refuses pins after some.
type failingPins struct {
	*fakeStore
	after int
	calls *int
}

func (f *failingPins) Inspect(ns store.NamespaceID, groups []uint32, hashes []kv.Hash) ([]embedded.ChunkState, error) {
	if *f.calls++; *f.calls > f.after {
		f.fail = embedded.ErrPinBudget
	}
	return f.fakeStore.Inspect(ns, groups, hashes)
}

func TestScopes(t *testing.T) {
	f := newFake(t)
	s := f.service()
	for _, r := range []*adminpb.RemoveRequest{
		{Namespace: f.digest(1), Scope: &adminpb.RemoveRequest_Everything{Everything: true}},
		{Namespace: f.digest(1), Scope: &adminpb.RemoveRequest_Tag{Tag: "t"}},
		{Scope: &adminpb.RemoveRequest_Tag{Tag: "u"}},
	} {
		if reply, err := s.Remove(t.Context(), r); err != nil || reply.GetRemoved().GetBytes() != 2*chunkBytes {
			t.Errorf("%v: %v, %v", r, reply, err)
		}
	}
	want := []string{
		"remove 1 - 0 hashes chain false everything false", "reset 1", "remove 1 t 0 hashes chain false everything false", "remove -1 u 0 hashes chain false everything false",
	}
	if !slices.Equal(f.said, want) {
		t.Errorf("the store was told %q", f.said)
	}
}

func TestChanges(t *testing.T) {
	f := newFake(t)
	s, ctx := f.service(), t.Context()
	f.put(1, 0, 2, embedded.ChunkPresent)
	f.gone = embedded.Removal{Chunks: 2, Bytes: 2000, Busy: 1}
	evicted, err := s.Evict(ctx, &adminpb.EvictRequest{Bytes: 2001})
	if err != nil || !evicted.GetShort() || evicted.GetBusyChunks() != 1 || evicted.GetEvicted().GetChunks() != 2 {
		t.Errorf("%v, %v", evicted, err)
	}
	if evicted, err = s.Evict(ctx, &adminpb.EvictRequest{Chunks: 2}); err != nil || evicted.GetShort() {
		t.Errorf("%v, %v", evicted, err)
	}
	fetched, err := s.Prefetch(ctx, &adminpb.PrefetchRequest{Keys: &adminpb.Keys{Namespace: f.digest(1), Hashes: hashesOf(0, 3, 16), Groups: []uint32{1}}})
	if err != nil || fetched.GetBegunChunks() != 1 || fetched.GetResidentChunks() != 2 {
		t.Errorf("%v, %v", fetched, err)
	}
	for _, r := range []*adminpb.SetQuotaRequest{{Namespace: f.digest(1), Bytes: 5}, {Tag: "t"}} {
		if _, err := s.SetQuota(ctx, r); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.SetTTL(ctx, &adminpb.SetTTLRequest{Namespace: f.digest(0), TtlSeconds: 90}); err != nil {
		t.Error(err)
	}
	drained, err := s.SetDraining(ctx, &adminpb.SetDrainingRequest{Draining: true})
	if err != nil || drained.GetOpenPuts() != 3 {
		t.Errorf("%v, %v", drained, err)
	}
	want := []string{
		"evict {Chunks:4096 Bytes:2001}", "evict {Chunks:2 Bytes:0}", "prefetch 1: 1 keys", `quota "" 1: 5`, `quota "t" 0: 0`, "ttl 0: 1m30s", "drain true",
	}
	if !slices.Equal(f.said, want) {
		t.Errorf("the store was told %q", f.said)
	}
}

func TestQuestions(t *testing.T) {
	f := newFake(t)
	f.usage = []embedded.Usage{{Owner: embedded.Owner{Namespace: 1}, Chunks: 4, Bytes: 40, Quota: 100, Pinned: 10, Refused: 6}, {Owner: embedded.Owner{Namespace: 0}}}
	f.tags = []embedded.Usage{{Owner: embedded.Owner{Tag: "t"}, Chunks: 1, Bytes: 5, Quota: 7}, {Bytes: 2}}
	f.tops = []embedded.Prefix{
		{Namespace: 0, Chunks: 1, Hits: 9}, {Namespace: 1, Group: 1, Root: kv.Hash{1}, Leaf: kv.Hash{2}, Chunks: 3, Bytes: 30, Hits: 8},
		{Namespace: 1, Leaf: kv.Hash{3}}, {Namespace: 7}, {Namespace: 1, Group: 5},
	}
	s, ctx := f.service(), t.Context()
	list, err := s.ListNamespaces(ctx, nil)
	if err != nil || len(list.GetNamespaces()) != 2 || !bytes.Equal(list.GetNamespaces()[1].GetDigest(), f.digest(1)) ||
		list.GetNamespaces()[1].GetAmount().GetBytes() != 40 || list.GetNamespaces()[1].GetQuotaBytes() != 100 {
		t.Errorf("%v, %v", list, err)
	}
	byNamespace, err := s.GetUsage(ctx, &adminpb.GetUsageRequest{})
	if err != nil || len(byNamespace.GetEntries()) != 2 || !bytes.Equal(byNamespace.GetEntries()[0].GetNamespace(), f.digest(1)) || byNamespace.GetEntries()[0].GetRefusedPuts() != 6 {
		t.Errorf("%v, %v", byNamespace, err)
	}
	byTag, err := s.GetUsage(ctx, &adminpb.GetUsageRequest{ByTag: true})
	if err != nil || len(byTag.GetEntries()) != 2 || byTag.GetEntries()[0].GetTag() != "t" || len(byTag.GetEntries()[0].GetNamespace()) != 0 {
		t.Errorf("%v, %v", byTag, err)
	}
	quotas, err := s.ListQuotas(ctx, nil)
	if err != nil || len(quotas.GetQuotas()) != 2 || quotas.GetQuotas()[1].GetTag() != "t" || quotas.GetQuotas()[1].GetUsedBytes() != 5 {
		t.Errorf("%v, %v", quotas, err)
	}
	top, err := s.TopPrefixes(ctx, &adminpb.TopPrefixesRequest{Limit: 10})
	if err != nil || len(top.GetPrefixes()) != 3 || top.GetPrefixes()[1].GetTokens() != 48 || len(top.GetPrefixes()[1].GetRoot()) != 16 || len(top.GetPrefixes()[2].GetRoot()) != 0 {
		t.Errorf("%v, %v", top, err)
	}
	if top, err = s.TopPrefixes(ctx, &adminpb.TopPrefixesRequest{Limit: 1, Namespace: f.digest(1)}); err != nil || len(top.GetPrefixes()) != 1 || top.GetPrefixes()[0].GetHits() != 8 {
		t.Errorf("%v, %v", top, err)
	}
	stats, err := s.GetStats(ctx, nil)
	if err != nil || stats.GetStored().GetChunks() != 7 || stats.GetEvictionPolicy() != "lru" {
		t.Errorf("%v, %v", stats, err)
	}
	settings, err := s.GetConfiguration(ctx, nil)
	if err != nil || len(settings.GetSettings()) != 1 || settings.GetSettings()[0].GetOrigin() != "flag" {
		t.Errorf("%v, %v", settings, err)
	}
}
