package daemon

import (
	"context"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// Calls of the store that are timed; they label a metric.
const (
	callPutStart = "put_start"
	callPutEnd   = "put_end"
	callGet      = "get"
	callRelease  = "release"
)

// timedStore counts how long the store takes to answer the calls that jobs wait
// for: 0.1 us beside a call of some 100.
type timedStore struct {
	storepb.StoreServer
	took func(call string, took time.Duration)
}

func timed[Q, R any](ctx context.Context, s *timedStore, call string, answer func(context.Context, Q) (R, error), request Q) (R, error) {
	began := time.Now()
	defer func() { s.took(call, time.Since(began)) }()
	return answer(ctx, request)
}

// PutStart implements storepb.StoreServer.
func (s *timedStore) PutStart(ctx context.Context, r *storepb.PutStartRequest) (*storepb.PutStartReply, error) {
	return timed(ctx, s, callPutStart, s.StoreServer.PutStart, r)
}

// PutEnd implements storepb.StoreServer.
func (s *timedStore) PutEnd(ctx context.Context, r *storepb.PutEndRequest) (*storepb.PutEndReply, error) {
	return timed(ctx, s, callPutEnd, s.StoreServer.PutEnd, r)
}

// Get implements storepb.StoreServer.
func (s *timedStore) Get(ctx context.Context, r *storepb.GetRequest) (*storepb.GetReply, error) {
	return timed(ctx, s, callGet, s.StoreServer.Get, r)
}

// Release implements storepb.StoreServer.
func (s *timedStore) Release(ctx context.Context, r *storepb.ReleaseRequest) (*storepb.ReleaseReply, error) {
	return timed(ctx, s, callRelease, s.StoreServer.Release, r)
}
