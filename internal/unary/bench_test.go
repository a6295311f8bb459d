package unary

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// BenchmarkGet asks for the places of chunks, as a load does, over this
// transport and over gRPC's own.
func BenchmarkGet(b *testing.B) {
	answer := func(r *storepb.GetRequest) (*storepb.GetReply, error) {
		n := len(r.GetHashes()) / 32
		return &storepb.GetReply{
			Statuses: make([]byte, n), Refs: make([]uint64, n), Segments: make([]uint32, n), Offsets: make([]uint64, n),
			Lengths: make([]uint32, n), Checksums: make([]uint32, n), Tiers: make([]byte, n),
		}, nil
	}
	dir := b.TempDir()
	serve(b, filepath.Join(dir, "unary"), answer)
	l, err := net.Listen("unix", filepath.Join(dir, "grpc"))
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(grpc.NumStreamWorkers(4), grpc.InitialWindowSize(4<<20), grpc.InitialConnWindowSize(4<<20))
	storepb.RegisterStoreServer(server, &service{get: answer})
	go server.Serve(l)
	b.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", filepath.Join(dir, "grpc"))
		}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	for _, chunks := range []int{16, 8192} {
		request := &storepb.GetRequest{
			Session: &storepb.Session{Client: 1, Number: 2}, Groups: make([]uint32, chunks), Shards: make([]uint32, chunks),
			Hashes: make([]byte, 32*chunks),
		}
		for name, transport := range map[string]grpc.ClientConnInterface{"unary": newClient(b, filepath.Join(dir, "unary")), "grpc": conn} {
			rpc := storepb.NewStoreClient(transport)
			b.Run(fmt.Sprintf("%s/%d", name, chunks), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := rpc.Get(b.Context(), request); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
