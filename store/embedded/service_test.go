package embedded

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// TestCallsThatAreWrong are refused as such; what nobody foresaw is our fault, and
// is logged.
func TestCallsThatAreWrong(t *testing.T) {
	w := newWorld(t, 16<<20)
	var log bytes.Buffer
	w.m.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	session := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 64<<10, 1))
	service, ctx := NewService(w.m), t.Context()
	pbSession := &storepb.Session{Client: session.Client, Number: session.Number}
	pbNamespace := &storepb.Namespace{Id: uint32(ns.ID), ResetEpoch: ns.ResetEpoch}
	open := func(spec *kv.NamespaceSpec) error {
		encoded, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		_, err = service.OpenNamespace(ctx, &storepb.OpenNamespaceRequest{Spec: encoded})
		return err
	}
	broken := testSpec("m", 64<<10, 1)
	broken.Groups = nil
	put := func(shard uint32, r *storepb.PutStartRequest) error {
		r.Session, r.Namespace = pbSession, pbNamespace
		r.Hashes, r.Parents = make([]byte, kv.MaxHashBytes), make([]byte, kv.MaxHashBytes)
		r.Groups, r.Shards, r.Depths = []uint32{0}, []uint32{shard}, []uint32{0}
		_, err := service.PutStart(ctx, r)
		return err
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"namespace that is none": {second(service.OpenNamespace(ctx, &storepb.OpenNamespaceRequest{Spec: []byte("{")})), codes.InvalidArgument},
		"namespace of nothing":   {open(broken), codes.InvalidArgument},
		"shard too large":        {open(testSpec("large", 1<<30, 1)), codes.OutOfRange},
		"no such shard":          {put(5, &storepb.PutStartRequest{}), codes.InvalidArgument},
		"no such pin":            {put(0, &storepb.PutStartRequest{Pin: 9}), codes.InvalidArgument},
		"no such session":        {second(service.Release(ctx, &storepb.ReleaseRequest{})), codes.Unauthenticated},
		"stale":                  {service.rpcError(fmt.Errorf("x: %w", store.ErrStaleNamespace)), codes.FailedPrecondition},
		"nobody foresaw":         {service.rpcError(errors.New("the reason")), codes.Internal},
	} {
		if status.Code(c.err) != c.code {
			t.Errorf("%s: %v, want %v", name, c.err, c.code)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "the reason") {
		t.Errorf("%d errors are logged: %s", n, &log)
	}
}
