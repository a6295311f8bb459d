package api

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
)

// rawCodec sends the same bytes for any message.
type rawCodec struct {
	encoding.CodecV2
	bytes []byte
}

func (c rawCodec) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(c.bytes)}, nil
}

// What came and no call reads does not add up to the end of a connection that is never idle.
func TestArrivalsThatNobodyReadsDoNotAddUp(t *testing.T) {
	const body, most = 1 << 20, 16 << 20
	s := New(Config{Index: &fakeIndex{}, MaxBodyBytes: body, MaxBusyBytes: most, Log: slog.New(slog.DiscardHandler)})
	client := listenTCP(t, s, grpc.InitialWindowSize(WindowBytes), grpc.InitialConnWindowSize(WindowBytes))()
	stream, err := client.QueryStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func() {
		t.Helper()
		if err := stream.Send(&conductorpb.QueryRequest{Model: "m"}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	garbage := make([]byte, body)
	for i := range garbage {
		garbage[i] = 0xff
	}
	for range 3 * most / body {
		_, err := client.Query(t.Context(), &conductorpb.QueryRequest{}, grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2("proto"), garbage}))
		wantCode(t, err, codes.Internal)
	}
	ask()
	if all, conns := s.arrivals.state(); all > most || conns != 1 {
		t.Errorf("%d bytes of %d connections are counted", all, conns)
	}
}

// A connection is counted anew as what its calls can have, and that is not less than they have.
func TestArrivalsAreCountedAnew(t *testing.T) {
	const message = 10 << 20
	a := &arrivals{most: 1 << 40, message: message}
	c := &arriving{of: a, calls: map[*sending]struct{}{}}
	a.conns = map[ends]*arriving{c.at: c}
	begin := func() context.Context {
		ctx := a.TagRPC(context.WithValue(t.Context(), arrivingKey{}, c), nil)
		a.HandleRPC(ctx, &stats.Begin{})
		return ctx
	}
	waits, reads := begin(), begin()
	for _, tc := range []struct {
		name string
		do   func()
		came int64
		want int64
	}{
		{"a part of each message", func() {}, message / 2, message / 2},
		{"more than calls can have", func() {}, 100 * message, 2 * (message + WindowBytes)},
		{"one was read", func() { a.HandleRPC(reads, &stats.InPayload{}) }, 0, message + 2*WindowBytes},
		{"some came since", func() {}, 100, message + 2*WindowBytes + 100},
		{"one has ended", func() { a.HandleRPC(waits, &stats.End{}) }, 0, WindowBytes + 100},
	} {
		tc.do()
		a.came(c, tc.came)
		if tc.came == 0 { // more is counted than is there
			a.mu.Lock()
			a.addLocked(c, 1<<30)
			a.mu.Unlock()
		}
		if a.anewLocked(c); c.bytes != tc.want || a.all != tc.want {
			t.Errorf("%s: %d bytes, %d in all, want %d", tc.name, c.bytes, a.all, tc.want)
		}
	}
}

// What is made up for beside messages is not so much that others' bytes are hidden.
func TestArrivalsBesideMessages(t *testing.T) {
	a := &arrivals{most: 1 << 40}
	c := &arriving{of: a, calls: map[*sending]struct{}{}}
	a.conns = map[ends]*arriving{c.at: c}
	ctx := a.TagRPC(context.WithValue(t.Context(), arrivingKey{}, c), nil)
	a.HandleRPC(ctx, &stats.Begin{})
	const others, messages, size = 1 << 20, 1000, 64
	a.came(c, others)
	for range messages {
		a.came(c, size)
		a.HandleRPC(ctx, &stats.InPayload{WireLength: size})
	}
	if least := int64(others - messages*100); c.bytes < least {
		t.Errorf("%d bytes of %d are counted, want %d", c.bytes, others, least)
	}
}
