package api

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
)

// waitBusy waits until what calls are charged is as it should be.
func waitBusy(t *testing.T, s *Server, what string, is func(bytes int64) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(s.rooms.busy.Load()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are taken, want %s", s.rooms.busy.Load(), what)
		}
	}
}

// What a query was charged is given back, too, where no handler is asked because its call does
// not end as it should.
func TestChargesOfCallsWithoutHandlers(t *testing.T) {
	index := &fakeIndex{}
	s := New(Config{Index: index, Log: slog.New(slog.DiscardHandler)})
	conn := connServer(t, s, &Tokens{})
	const size = 100_000
	q := &conductorpb.QueryRequest{Model: "m", Tokens: make([]byte, size)}
	open := func(ctx context.Context) grpc.ClientStream {
		// As a client would that takes the call for a stream.
		call, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, conductorpb.Conductor_Query_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		if err := call.SendMsg(q); err != nil {
			t.Fatal(err)
		}
		waitBusy(t, s, "the query's", func(bytes int64) bool { return bytes >= size })
		return call
	}
	nothing := func(bytes int64) bool { return bytes == 0 }
	for name, end := range map[string]func(call grpc.ClientStream, cancel func()){
		"cancelled": func(_ grpc.ClientStream, cancel func()) { cancel() },
		"two messages": func(call grpc.ClientStream, _ func()) {
			_ = call.SendMsg(q)
			wantCode(t, call.RecvMsg(&conductorpb.QueryReply{}), codes.Internal)
		},
		"no room for the second": func(call grpc.ClientStream, _ func()) {
			others := s.rooms.most - size - size/2
			s.rooms.busy.Add(others)
			_ = call.SendMsg(q)
			wantCode(t, call.RecvMsg(&conductorpb.QueryReply{}), codes.Internal)
			s.rooms.busy.Add(-others)
		},
		"one message": func(call grpc.ClientStream, _ func()) {
			_ = call.CloseSend()
			wantCode(t, call.RecvMsg(&conductorpb.QueryReply{}), codes.OK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			end(open(ctx), cancel)
			waitBusy(t, s, "none", nothing)
			s.codec.charges.Range(func(any, any) bool {
				t.Error("a charge is kept")
				return true
			})
		})
	}
}

// A stream that waits keeps nothing of the query before: it is not charged any more.
func TestTakenQueriesAreNotKept(t *testing.T) {
	c := New(Config{}).codec
	ctx := c.TagRPC(t.Context(), nil)
	q := &conductorpb.QueryRequest{}
	call, _ := ctx.Value(askedKey{}).(*asked)
	c.HandleRPC(ctx, &stats.InPayload{Payload: q})
	if call.query != q {
		t.Error("the call's query is not known")
	}
	if _, err := c.taken(ctx, q); err != nil || call.query != nil {
		t.Errorf("%v, it is kept: %v", err, call.query != nil)
	}
}
