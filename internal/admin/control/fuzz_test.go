package control

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// Whatever bytes come as a request: an answer or a refusal, and the store is told
// only what it has (the fake fails the test otherwise).
func FuzzRequests(f *testing.F) {
	seed := func(m proto.Message, method byte) {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(method, data)
	}
	d := newFake(f)
	keys := &adminpb.Keys{Namespace: d.digest(1), Hashes: hashesOf(0, 3, 16), Groups: []uint32{1}}
	seed(&adminpb.PinRequest{Keys: keys, Kind: adminpb.PinRequest_KIND_HARD, TtlSeconds: 5}, 0)
	seed(&adminpb.UnpinRequest{Keys: keys}, 1)
	seed(&adminpb.PrefetchRequest{Keys: keys}, 2)
	seed(&adminpb.RemoveRequest{Namespace: d.digest(1), Scope: &adminpb.RemoveRequest_Hashes_{Hashes: &adminpb.RemoveRequest_Hashes{Hashes: hashesOf(0, 3, 16), Chain: true}}}, 3)
	seed(&adminpb.RemoveRequest{Scope: &adminpb.RemoveRequest_Tag{Tag: "t"}}, 3)
	seed(&adminpb.SetQuotaRequest{Tag: "t", Bytes: 1}, 4)
	seed(&adminpb.SetTTLRequest{Namespace: d.digest(0), TtlSeconds: 1}, 5)
	seed(&adminpb.EvictRequest{Chunks: 1}, 6)
	seed(&adminpb.TopPrefixesRequest{Limit: 1, Namespace: d.digest(0)}, 7)
	f.Fuzz(func(t *testing.T, method byte, data []byte) {
		fake := newFake(t)
		fake.put(0, 0, 3, embedded.ChunkPresent)
		s, ctx := fake.service(), t.Context()
		read := func(m proto.Message) bool { return proto.Unmarshal(data, m) == nil }
		var err error
		switch method % 8 {
		case 0:
			if r := new(adminpb.PinRequest); read(r) {
				_, err = s.Pin(ctx, r)
			}
		case 1:
			if r := new(adminpb.UnpinRequest); read(r) {
				_, err = s.Unpin(ctx, r)
			}
		case 2:
			if r := new(adminpb.PrefetchRequest); read(r) {
				_, err = s.Prefetch(ctx, r)
			}
		case 3:
			if r := new(adminpb.RemoveRequest); read(r) {
				_, err = s.Remove(ctx, r)
			}
		case 4:
			if r := new(adminpb.SetQuotaRequest); read(r) {
				_, err = s.SetQuota(ctx, r)
			}
		case 5:
			if r := new(adminpb.SetTTLRequest); read(r) {
				_, err = s.SetTTL(ctx, r)
			}
		case 6:
			if r := new(adminpb.EvictRequest); read(r) {
				_, err = s.Evict(ctx, r)
			}
		case 7:
			if r := new(adminpb.TopPrefixesRequest); read(r) {
				_, err = s.TopPrefixes(ctx, r)
			}
		}
		if err != nil {
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.NotFound {
				t.Errorf("%v", err)
			}
			if len(fake.said) > 0 {
				t.Errorf("refused with %v, and yet the store was told %q", err, fake.said)
			}
		}
	})
}
