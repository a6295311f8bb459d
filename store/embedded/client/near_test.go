package client

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// heard is a connection to a master that refuses every put, and keeps what was
// said of its node.
type heard struct {
	grpc.ClientConnInterface
	near []uint32
}

func (h *heard) Invoke(_ context.Context, _ string, args, _ any, _ ...grpc.CallOption) error {
	if r, is := args.(*storepb.PutStartRequest); is {
		h.near = append(h.near, r.GetNearNode())
	}
	return status.Error(codes.InvalidArgument, "no")
}

// TestPutsSayTheirNode: node 0 is told apart from one that is not known.
func TestPutsSayTheirNode(t *testing.T) {
	rpc := &heard{}
	c := New(Config{RPC: rpc, ID: 1, Log: slog.New(slog.DiscardHandler)})
	c.session = 1
	put := func() {
		if _, err := c.PutStart(t.Context(), store.Namespace{}, store.PutOptions{}, []store.PutItem{{}}); err == nil {
			t.Fatal("a refused put is no error")
		}
	}
	put()
	for _, node := range []int{3, 0, -1} {
		c.SetNode(node)
		put()
	}
	if want := [4]uint32{0, 4, 1, 0}; len(rpc.near) != 4 || [4]uint32(rpc.near) != want {
		t.Errorf("puts said %v, want %v", rpc.near, want)
	}
}
