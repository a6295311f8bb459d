package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxBatch bounds the items of one call.
const maxBatch = 1 << 20

// Service answers the store's gRPC calls from a Master.
type Service struct {
	storepb.UnimplementedStoreServer
	master *Master
	more   []func() map[string]uint64
}

// NewService returns the gRPC service of a master. Its statistics show the
// counters of more beside the master's.
func NewService(m *Master, more ...func() map[string]uint64) *Service {
	return &Service{master: m, more: more}
}

// rpcError gives an error the code that the client branches on. One that is not
// foreseen is a fault of ours, and is logged.
func (s *Service) rpcError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrOption):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, store.ErrStaleNamespace):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, ErrUnknownClient):
		return status.Error(codes.Unauthenticated, err.Error())
	case errors.Is(err, store.ErrShardTooLarge):
		return status.Error(codes.OutOfRange, err.Error())
	case errors.Is(err, ErrTooManyNamespaces):
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	s.master.opts.Log.Error("a call of a store client failed", "error", err)
	return status.Error(codes.Internal, err.Error())
}

func sessionOf(s *storepb.Session) Session {
	return Session{Client: s.GetClient(), Number: s.GetNumber()}
}

func namespaceOf(n *storepb.Namespace) store.Namespace {
	return store.Namespace{ID: store.NamespaceID(n.GetId()), ResetEpoch: n.GetResetEpoch()}
}

// checkColumns tells whether the columns of a batch have one length.
func checkColumns(hashes []byte, columns ...int) (int, error) {
	n := len(hashes) / kv.MaxHashBytes
	if len(hashes)%kv.MaxHashBytes != 0 || n > maxBatch {
		return 0, status.Errorf(codes.InvalidArgument, "hashes: %d bytes; want up to %d times %d", len(hashes), maxBatch, kv.MaxHashBytes)
	}
	for _, c := range columns {
		if c != n {
			return 0, status.Errorf(codes.InvalidArgument, "a column has %d entries for %d hashes", c, n)
		}
	}
	return n, nil
}

func hashAt(blob []byte, i int) kv.Hash {
	return kv.Hash(blob[i*kv.MaxHashBytes : (i+1)*kv.MaxHashBytes])
}

// OpenNamespace implements storepb.StoreServer.
func (s *Service) OpenNamespace(_ context.Context, r *storepb.OpenNamespaceRequest) (*storepb.OpenNamespaceReply, error) {
	if len(r.GetSpec()) > namespaceBytes {
		return nil, status.Errorf(codes.InvalidArgument, "namespace of %d bytes", len(r.GetSpec()))
	}
	spec := new(kv.NamespaceSpec)
	if err := json.Unmarshal(r.GetSpec(), spec); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "namespace: %v", err)
	}
	if err := spec.Validate(); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "namespace: %v", err)
	}
	ns, err := s.master.OpenNamespace(spec)
	if err != nil {
		return nil, s.rpcError(err)
	}
	return &storepb.OpenNamespaceReply{Namespace: &storepb.Namespace{Id: uint32(ns.ID), ResetEpoch: ns.ResetEpoch}}, nil
}

// PutStart implements storepb.StoreServer.
func (s *Service) PutStart(_ context.Context, r *storepb.PutStartRequest) (*storepb.PutStartReply, error) {
	n, err := checkColumns(r.GetHashes(), len(r.GetGroups()), len(r.GetShards()), len(r.GetDepths()), len(r.GetParents())/kv.MaxHashBytes)
	if err != nil {
		return nil, err
	}
	items := make([]store.PutItem, n)
	for i := range items {
		items[i] = store.PutItem{
			Group: r.GetGroups()[i], Shard: r.GetShards()[i], Depth: r.GetDepths()[i],
			Hash: hashAt(r.GetHashes(), i), Parent: hashAt(r.GetParents(), i),
		}
	}
	opts, err := putOptions(r)
	if err != nil {
		return nil, err
	}
	grants, err := s.master.PutStartAs(sessionOf(r.GetSession()), namespaceOf(r.GetNamespace()), opts, items)
	if err != nil {
		return nil, s.rpcError(err)
	}
	reply := &storepb.PutStartReply{Statuses: make([]byte, n)}
	for i, g := range grants {
		reply.Statuses[i] = byte(g.Status)
		if g.Status == store.PutGranted {
			reply.Tickets = append(reply.Tickets, g.Ticket)
			reply.Segments = append(reply.Segments, g.Place.Segment)
			reply.Offsets = append(reply.Offsets, g.Place.Offset)
			reply.Lengths = append(reply.Lengths, g.Place.Bytes)
		}
	}
	return reply, nil
}

// maxSaltTag bounds a salt tag that a client sends.
const maxSaltTag = 4096

func putOptions(r *storepb.PutStartRequest) (*PutOptions, error) {
	if n := len(r.GetSaltTag()); n > maxSaltTag {
		return nil, status.Errorf(codes.InvalidArgument, "salt tag of %d bytes, at most %d", n, maxSaltTag)
	}
	if r.GetPin() > uint32(PinHard) {
		return nil, status.Errorf(codes.InvalidArgument, "pin %d, at most %d", r.GetPin(), PinHard)
	}
	opts := &PutOptions{SaltTag: r.GetSaltTag(), TTL: time.Duration(r.GetTtlSeconds()) * time.Second, Pin: PinKind(r.GetPin())}
	if n := r.GetNearNode(); n > 0 && n <= maxNodes {
		node := int(n) - 1
		opts.Node = &node
	}
	return opts, nil
}

// PutEnd implements storepb.StoreServer.
func (s *Service) PutEnd(_ context.Context, r *storepb.PutEndRequest) (*storepb.PutEndReply, error) {
	if len(r.GetTickets()) != len(r.GetChecksums()) || len(r.GetTickets()) > maxBatch {
		return nil, status.Errorf(codes.InvalidArgument, "%d tickets with %d checksums", len(r.GetTickets()), len(r.GetChecksums()))
	}
	commits := make([]store.PutCommit, len(r.GetTickets()))
	for i := range commits {
		commits[i] = store.PutCommit{Ticket: r.GetTickets()[i], Checksum: r.GetChecksums()[i]}
	}
	published, err := s.master.PutEnd(sessionOf(r.GetSession()), commits)
	if err != nil {
		return nil, s.rpcError(err)
	}
	reply := &storepb.PutEndReply{Published: make([]byte, len(published))}
	for i, ok := range published {
		if ok {
			reply.Published[i] = 1
		}
	}
	return reply, nil
}

// PutRevoke implements storepb.StoreServer.
func (s *Service) PutRevoke(_ context.Context, r *storepb.PutRevokeRequest) (*storepb.PutRevokeReply, error) {
	return &storepb.PutRevokeReply{}, s.rpcError(s.master.PutRevoke(sessionOf(r.GetSession()), r.GetTickets()))
}

// Get implements storepb.StoreServer.
func (s *Service) Get(_ context.Context, r *storepb.GetRequest) (*storepb.GetReply, error) {
	n, err := checkColumns(r.GetHashes(), len(r.GetGroups()), len(r.GetShards()))
	if err != nil {
		return nil, err
	}
	items := make([]store.GetItem, n)
	for i := range items {
		items[i] = store.GetItem{Group: r.GetGroups()[i], Shard: r.GetShards()[i], Hash: hashAt(r.GetHashes(), i)}
	}
	lease := store.Lease{Engine: r.GetLeaseEngine(), Request: r.GetLeaseRequest()}
	results, err := s.master.Get(sessionOf(r.GetSession()), namespaceOf(r.GetNamespace()), lease, items)
	if err != nil {
		return nil, s.rpcError(err)
	}
	reply := &storepb.GetReply{Statuses: make([]byte, n)}
	for i, g := range results {
		reply.Statuses[i] = byte(g.Status)
		if g.Status == store.GetReady {
			reply.Refs = append(reply.Refs, g.Ref)
			reply.Segments = append(reply.Segments, g.Place.Segment)
			reply.Offsets = append(reply.Offsets, g.Place.Offset)
			reply.Lengths = append(reply.Lengths, g.Place.Bytes)
			reply.Checksums = append(reply.Checksums, g.Checksum)
			reply.Tiers = append(reply.Tiers, byte(g.Tier))
		}
	}
	return reply, nil
}

// AwaitArrival implements storepb.StoreServer.
func (s *Service) AwaitArrival(ctx context.Context, r *storepb.AwaitArrivalRequest) (*storepb.AwaitArrivalReply, error) {
	if len(r.GetHash()) != kv.MaxHashBytes {
		return nil, status.Errorf(codes.InvalidArgument, "a hash of %d bytes, want %d", len(r.GetHash()), kv.MaxHashBytes)
	}
	chunk := store.ChunkKey{Group: r.GetGroup(), Hash: kv.Hash(r.GetHash())}
	atMost := time.Duration(r.GetAtMostUs()) * time.Microsecond
	err := s.master.AwaitArrival(ctx, sessionOf(r.GetSession()), namespaceOf(r.GetNamespace()), chunk, atMost)
	return &storepb.AwaitArrivalReply{}, s.rpcError(err)
}

// Release implements storepb.StoreServer.
func (s *Service) Release(_ context.Context, r *storepb.ReleaseRequest) (*storepb.ReleaseReply, error) {
	return &storepb.ReleaseReply{}, s.rpcError(s.master.Release(sessionOf(r.GetSession()), r.GetRefs()))
}

// ReportFailed implements storepb.StoreServer.
func (s *Service) ReportFailed(_ context.Context, r *storepb.ReportFailedRequest) (*storepb.ReportFailedReply, error) {
	n, err := checkColumns(r.GetHashes(), len(r.GetGroups()), len(r.GetCorrupt()))
	if err != nil {
		return nil, err
	}
	chunks := make([]store.FailedChunk, n)
	for i := range chunks {
		chunks[i] = store.FailedChunk{Group: r.GetGroups()[i], Hash: hashAt(r.GetHashes(), i), Corrupt: r.GetCorrupt()[i] != 0}
	}
	err = s.master.ReportFailed(sessionOf(r.GetSession()), namespaceOf(r.GetNamespace()), chunks)
	return &storepb.ReportFailedReply{}, s.rpcError(err)
}

// Stats implements storepb.StoreServer.
func (s *Service) Stats(context.Context, *storepb.StatsRequest) (*storepb.StatsReply, error) {
	st := s.master.Stats()
	counters := st.Counters()
	for _, more := range s.more {
		maps.Copy(counters, more())
	}
	return &storepb.StatsReply{
		Chunks: uint64(st.Chunks), Namespaces: uint64(st.Namespaces), CapacityBytes: st.CapacityBytes,
		LeasedBytes: st.LeasedBytes, OpenReads: uint64(st.OpenReads), OpenPuts: uint64(st.OpenPuts),
		Clients: uint64(st.Clients), UndeclaredClients: uint64(st.Undeclared), Counters: counters,
	}, nil
}
