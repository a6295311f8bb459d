package api

import (
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// listenTCP serves over real sockets, and returns what connects to it.
func listenTCP(t *testing.T, s *Server, options ...grpc.ServerOption) func() conductorpb.ConductorClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(s.Guard(&Tokens{}, func(string) bool { return false }), options...)...)
	conductorpb.RegisterConductorServer(server, s.GRPC())
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(s.Listener(l)) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return func() conductorpb.ConductorClient {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conductorpb.NewConductorClient(conn)
	}
}

// hungIndex answers nothing about one model until it may.
type hungIndex struct {
	fakeIndex
	hung string
	may  chan struct{}
}

func (x *hungIndex) Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	if q.Model == x.hung {
		<-x.may
	}
	return x.fakeIndex.Query(q, dst)
}

func (a *arrivals) state() (all int64, conns int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all, len(a.conns)
}

// Whoever sends more than may be under way is ended, and nobody else.
func TestArrivalsAreBounded(t *testing.T) {
	const body = 256 << 10
	index := &hungIndex{hung: "slow", may: make(chan struct{})}
	s := New(Config{Index: index, MaxBodyBytes: body, MaxBusyBytes: 4 * body, Log: slog.New(slog.DiscardHandler)})
	dial := listenTCP(t, s, grpc.InitialWindowSize(body), grpc.InitialConnWindowSize(64*body))
	modest, hog := dial(), dial()
	stream, err := modest.QueryStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Calls each of which has one message read and sends the next ones.
	ended := make(chan error, 8)
	var calls []grpc.BidiStreamingClient[conductorpb.QueryRequest, conductorpb.QueryReply]
	for range cap(ended) {
		one, err := hog.QueryStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := one.Send(&conductorpb.QueryRequest{Model: "m"}); err != nil {
			t.Fatal(err)
		}
		if _, err := one.Recv(); err != nil {
			t.Fatal(err)
		}
		calls = append(calls, one)
	}
	for _, one := range calls {
		go func() {
			for one.Send(&conductorpb.QueryRequest{Model: "slow", Tokens: make([]byte, body/4)}) == nil {
			}
			_, err := one.Recv()
			ended <- err
		}()
	}
	for range cap(ended) {
		wantCode(t, <-ended, codes.Unavailable)
	}
	if all, _ := s.arrivals.state(); all > s.arrivals.most {
		t.Errorf("%d bytes, at most %d", all, s.arrivals.most)
	}
	close(index.may)
	for range 3 {
		if err := stream.Send(&conductorpb.QueryRequest{Model: "m", Tokens: make([]byte, body/4)}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}

// What calls have read is counted off, however long a connection lives and whatever goes over it.
func TestArrivalsDoNotAddUp(t *testing.T) {
	s := New(Config{Index: &fakeIndex{}, Log: slog.New(slog.DiscardHandler)})
	client := listenTCP(t, s)()
	stream, err := client.QueryStream(t.Context()) // so that it is never idle
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		q := &conductorpb.QueryRequest{Model: "m", Tokens: make([]byte, 4*rand.IntN(1<<10))}
		if i%100 == 0 {
			q.Tokens = make([]byte, 1<<20)
		}
		if err := stream.Send(q); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Query(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if all, conns := s.arrivals.state(); all > 4<<10 || conns != 1 {
		t.Errorf("%d bytes of %d connections are counted", all, conns)
	}
}

// spyCodec notes what is decoded.
type spyCodec struct {
	encoding.CodecV2
	decoded int
}

func (c *spyCodec) Unmarshal(data mem.BufferSlice, into any) error {
	c.decoded++
	return c.CodecV2.Unmarshal(data, into)
}

// A query for which there is no room is not decoded, and what is taken is given back.
func TestQueriesAreChargedBeforeTheyAreDecoded(t *testing.T) {
	index := &fakeIndex{}
	s := New(Config{Index: index, Log: slog.New(slog.DiscardHandler)})
	spy := &spyCodec{CodecV2: s.codec.CodecV2}
	s.codec.CodecV2 = spy
	client := dialServer(t, s, &Tokens{})
	q := &conductorpb.QueryRequest{Model: "m", TokenIds: make([]uint32, 10_000)}
	taken := s.rooms.most - 30_000 // more than its bytes, and less than what is made of them
	s.rooms.busy.Store(taken)
	_, err := client.Query(t.Context(), q)
	wantCode(t, err, codes.ResourceExhausted)
	stream, err := client.QueryStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(q); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantCode(t, err, codes.ResourceExhausted)
	if spy.decoded != 0 || s.rooms.busy.Load() != taken {
		t.Errorf("%d were decoded, %d bytes are taken, before %d", spy.decoded, s.rooms.busy.Load(), taken)
	}
	s.rooms.busy.Store(0)
	if _, err := client.Query(t.Context(), q); err != nil || spy.decoded != 1 {
		t.Errorf("%v, %d were decoded", err, spy.decoded)
	}
	for deadline := time.Now().Add(time.Minute); s.rooms.busy.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are taken", s.rooms.busy.Load())
		}
	}
}

// A query is charged at least what it has in memory.
func TestDecodedBytes(t *testing.T) {
	for range 500 {
		q := &conductorpb.QueryRequest{Model: "m", Tokens: make([]byte, rand.IntN(100))}
		for range rand.IntN(50) {
			q.TokenIds = append(q.TokenIds, rand.Uint32()>>rand.IntN(32))
		}
		for range rand.IntN(50) {
			q.SeqHashes = append(q.SeqHashes, rand.Uint64())
		}
		data, err := proto.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		real := int64(len(q.Tokens) + 4*len(q.TokenIds) + 8*len(q.SeqHashes))
		if got := decodedBytes(data); got < real || got > 2*real+int64(len(data)) {
			t.Fatalf("%d for %d bytes of which are made %d", got, len(data), real)
		}
		var loose []byte // one by one
		for _, id := range q.GetTokenIds() {
			loose = protowire.AppendVarint(protowire.AppendTag(loose, tokenIDsField, protowire.VarintType), uint64(id))
		}
		if got := decodedBytes(loose); got < 4*int64(len(q.TokenIds)) {
			t.Fatalf("%d for %d tokens", got, len(q.TokenIds))
		}
	}
}

func FuzzDecodedBytes(f *testing.F) {
	data, _ := proto.Marshal(&conductorpb.QueryRequest{Model: "m", TokenIds: []uint32{1, 1 << 20}, SeqHashes: []uint64{1}, Tokens: []byte{1, 2, 3, 4}})
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var q conductorpb.QueryRequest
		got := decodedBytes(data)
		if proto.Unmarshal(data, &q) == nil && got < int64(len(q.GetTokens())+4*len(q.GetTokenIds())+8*len(q.GetSeqHashes())) || got < int64(len(data)) {
			t.Errorf("%d for %v", got, &q)
		}
	})
}
