package api

import (
	"context"
	"errors"
	"net"
	"reflect"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"log/slog"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// dialFake returns a client of a server in front of an index.
func dialFake(t *testing.T, index Indexer, tokens *Tokens) conductorpb.ConductorClient {
	t.Helper()
	s := New(Config{Index: index, Log: slog.New(slog.DiscardHandler)})
	server := grpc.NewServer(s.Guard(tokens, func(string) bool { return false })...)
	conductorpb.RegisterConductorServer(server, s.GRPC())
	l := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-done
	})
	return conductorpb.NewConductorClient(conn)
}

func TestGRPC(t *testing.T) {
	incomplete := match("b", 3, [3]int{16}, [3]int{16, 16, 16})
	incomplete.State, incomplete.Since, incomplete.Truncated = contract.Incomplete, 9, true
	index := &fakeIndex{matches: map[string][]contract.RankMatch{"default": {
		match("a", prefixindex.Shared, [3]int{0, 8, 0}, [3]int{0, 8, 8}), match("a", 0, [3]int{32, 8, 0}, [3]int{32, 40, 40}), incomplete,
	}}}
	client := dialFake(t, index, &Tokens{})
	service := &conductorpb.Service{Endpoint: "tcp://e:1", Model: "m", Instance: "i", BlockTokens: 16, Rank: 2, HashAlgorithm: "sha256"}
	if _, err := client.Register(t.Context(), &conductorpb.RegisterRequest{Service: service}); err != nil {
		t.Fatal(err)
	}
	again, err := client.Register(t.Context(), &conductorpb.RegisterRequest{Service: service})
	if err != nil || !again.GetExisted() {
		t.Errorf("%v, %v", again, err)
	}
	service.Endpoint = "tcp://e:2"
	_, err = client.Register(t.Context(), &conductorpb.RegisterRequest{Service: service})
	wantCode(t, err, codes.AlreadyExists)
	_, err = client.Register(t.Context(), &conductorpb.RegisterRequest{})
	wantCode(t, err, codes.InvalidArgument)
	index.services[0].State = contract.Silent
	list, err := client.ListServices(t.Context(), &conductorpb.ListServicesRequest{})
	if err != nil || len(list.GetServices()) != 1 || list.GetServices()[0].GetState() != conductorpb.State_SILENT || list.GetServices()[0].GetService().GetRank() != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := client.Unregister(t.Context(), &conductorpb.UnregisterRequest{Instance: "i", Rank: 2}); err != nil {
		t.Error(err)
	}
	_, err = client.Unregister(t.Context(), &conductorpb.UnregisterRequest{Instance: "i", Rank: 2})
	wantCode(t, err, codes.NotFound)

	want := &conductorpb.QueryReply{Instances: []*conductorpb.InstanceMatch{
		{Instance: "a", LongestMatched: 40, Complete: true, Ranks: []*conductorpb.RankMatch{
			{Rank: -1, Held: &conductorpb.Tiers{Cpu: 8}, Through: &conductorpb.Tiers{Cpu: 8, Disk: 8}, State: conductorpb.State_COMPLETE},
			{Rank: 0, Held: &conductorpb.Tiers{Gpu: 32, Cpu: 8}, Through: &conductorpb.Tiers{Gpu: 32, Cpu: 40, Disk: 40}, State: conductorpb.State_COMPLETE},
		}},
		{Instance: "b", LongestMatched: 16, Ranks: []*conductorpb.RankMatch{
			{Rank: 3, Held: &conductorpb.Tiers{Gpu: 16}, Through: &conductorpb.Tiers{Gpu: 16, Cpu: 16, Disk: 16}, State: conductorpb.State_INCOMPLETE, CompleteSince: 9, Truncated: true},
		}},
	}}
	stream, err := client.QueryStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []*conductorpb.QueryRequest{
		{Model: "m", BlockTokens: 16, Tokens: tokensOf(1, 2)}, {Model: "m", BlockTokens: 16, TokenIds: []uint32{1, 2}}, {Model: "m", SeqHashes: []uint64{5, 6}, AdditionalSalt: proto.String("")},
	} {
		single, err := client.Query(t.Context(), q)
		if err != nil || !proto.Equal(single, want) {
			t.Errorf("%v, %v", single, err)
		}
		if err := stream.Send(q); err != nil {
			t.Fatal(err)
		}
		streamed, err := stream.Recv()
		if err != nil || !proto.Equal(streamed, want) {
			t.Errorf("%v, %v", streamed, err)
		}
		asked := index.last()
		if q.SeqHashes != nil && (!reflect.DeepEqual(asked.Hashes, hashesOf(5, 6)) || !asked.HasAdditionalSalt) || q.SeqHashes == nil && (string(asked.Tokens) != string(tokensOf(1, 2)) || asked.HasAdditionalSalt) {
			t.Errorf("asked %+v", asked)
		}
	}
	for _, q := range []*conductorpb.QueryRequest{
		{BlockTokens: 16}, {Model: "m", Tokens: []byte{1}}, {Model: "m", Tokens: tokensOf(1), TokenIds: []uint32{1}}, {Model: "m", BlockTokens: 1 << 30, Tokens: tokensOf(1)},
	} {
		_, err := client.Query(t.Context(), q)
		wantCode(t, err, codes.InvalidArgument)
	}
	index.registerErr = errors.New("no thread")
	_, err = client.Register(t.Context(), &conductorpb.RegisterRequest{Service: service})
	wantCode(t, err, codes.Internal)
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if grpcstatus.Code(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestGRPCTokens(t *testing.T) {
	var tokens Tokens
	tokens.Set([]string{"0123456789abcdef"})
	client := dialFake(t, &fakeIndex{}, &tokens)
	q := &conductorpb.QueryRequest{Model: "m"}
	_, err := client.Query(t.Context(), q)
	wantCode(t, err, codes.Unauthenticated)
	known := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer 0123456789abcdef")
	if _, err := client.Query(known, q); err != nil {
		t.Error(err)
	}
	for _, ctx := range []context.Context{t.Context(), metadata.AppendToOutgoingContext(known, "authorization", "Bearer x")} {
		stream, err := client.QueryStream(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		wantCode(t, err, codes.Unauthenticated)
	}
}
