package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
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
	return dialServer(t, New(Config{Index: index, Log: slog.New(slog.DiscardHandler)}), tokens)
}

// dialServer returns a client of a server.
func dialServer(t *testing.T, s *Server, tokens *Tokens, more ...grpc.ServerOption) conductorpb.ConductorClient {
	t.Helper()
	return conductorpb.NewConductorClient(connServer(t, s, tokens, more...))
}

// connServer returns a connection to a server.
func connServer(t *testing.T, s *Server, tokens *Tokens, more ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(append(s.Guard(tokens, func(string) bool { return false }), more...)...)
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
	return conn
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

// received counts the bytes of messages that were decoded.
type received struct{ bytes atomic.Int64 }

func (*received) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*received) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*received) HandleConn(context.Context, stats.ConnStats)                       {}
func (r *received) HandleRPC(_ context.Context, of stats.RPCStats) {
	if in, ok := of.(*stats.InPayload); ok {
		r.bytes.Add(int64(in.Length))
	}
}

// Of somebody without a token nothing is read, and all is counted.
func TestGRPCCalls(t *testing.T) {
	var mu sync.Mutex
	answered := map[string]int{}
	s := New(Config{Index: &fakeIndex{}, Log: slog.New(slog.DiscardHandler), Answered: func(call string, status int, _ time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		answered[fmt.Sprint(call, " ", status)]++
	}})
	var tokens Tokens
	tokens.Set([]string{"0123456789abcdef"})
	var in received
	client := dialServer(t, s, &tokens, grpc.StatsHandler(&in), grpc.MaxRecvMsgSize(32<<20))
	_, err := client.Query(t.Context(), &conductorpb.QueryRequest{Model: "m", Tokens: make([]byte, 8<<20)})
	wantCode(t, err, codes.Unauthenticated)
	if n := in.bytes.Load(); n != 0 {
		t.Errorf("%d bytes of somebody without a token were decoded", n)
	}
	known := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer 0123456789abcdef")
	stream, err := client.QueryStream(known)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := stream.Send(&conductorpb.QueryRequest{Model: "m"}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	want := map[string]int{conductorpb.Conductor_Query_FullMethodName + " 400": 1, conductorpb.Conductor_QueryStream_FullMethodName + " 200": 3}
	if !reflect.DeepEqual(answered, want) {
		t.Errorf("%v, want %v", answered, want)
	}
}
