package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// Config is what New needs.
type Config struct {
	Store Store
	// Stats returns the state of the store and of what goes with it.
	Stats func() Stats
	// Settings returns the configuration in force. Nil: it is not known.
	Settings func() []config.Setting
	// Log gets a line for each call that changes something.
	Log *slog.Logger
}

// Service implements adminpb.AdminServer.
type Service struct {
	adminpb.UnimplementedAdminServer
	cfg Config
}

// New returns the service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// rpcError gives an error of the store the code that a caller branches on. One
// that is not foreseen is a fault of ours, and is logged.
func (s *Service) rpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, coded := status.FromError(err); coded {
		return err
	}
	code, known := codeOf(err)
	if !known {
		s.cfg.Log.Error("an operator's call failed", "error", err)
	}
	return status.Error(code, err.Error())
}

func codeOf(err error) (code codes.Code, known bool) {
	switch {
	case errors.Is(err, embedded.ErrPinBudget), errors.Is(err, embedded.ErrQuotaTable), errors.Is(err, embedded.ErrRemovals):
		return codes.ResourceExhausted, true
	case errors.Is(err, embedded.ErrNoTier):
		return codes.FailedPrecondition, true
	case errors.Is(err, embedded.ErrOption), errors.Is(err, embedded.ErrScope):
		return codes.InvalidArgument, true
	case errors.Is(err, store.ErrStaleNamespace):
		return codes.NotFound, true
	case errors.Is(err, disk.ErrUncertain):
		return codes.Unavailable, true
	case errors.Is(err, context.Canceled):
		return codes.Canceled, true
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded, true
	}
	return codes.Internal, false
}

// names are the namespaces by number.
type names map[store.NamespaceID]*kv.NamespaceSpec

func (s *Service) names() names {
	out := names{}
	for _, entry := range s.cfg.Store.Namespaces() {
		out[entry.ID] = entry.Spec
	}
	return out
}

// digest returns a namespace's name in replies, nil for one that is not there.
func (n names) digest(id store.NamespaceID) []byte {
	if n[id] == nil {
		return nil
	}
	d := n[id].Digest()
	return d[:]
}

func amount(chunks int, bytes uint64) *adminpb.Amount {
	return &adminpb.Amount{Chunks: uint64(chunks), Bytes: bytes}
}

// ListNamespaces implements adminpb.AdminServer.
func (s *Service) ListNamespaces(context.Context, *adminpb.ListNamespacesRequest) (*adminpb.ListNamespacesReply, error) {
	usage := map[store.NamespaceID]embedded.Usage{}
	for _, u := range s.cfg.Store.UsageByNamespace() {
		usage[u.Owner.Namespace] = u
	}
	reply := &adminpb.ListNamespacesReply{}
	for _, entry := range s.cfg.Store.Namespaces() {
		spec, err := json.Marshal(entry.Spec)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "namespace %d: %v", entry.ID, err)
		}
		digest, u := entry.Spec.Digest(), usage[entry.ID]
		reply.Namespaces = append(reply.Namespaces, &adminpb.ListNamespacesReply_Entry{
			Digest: digest[:], Id: uint32(entry.ID), Spec: spec, Amount: amount(u.Chunks, u.Bytes), PinnedBytes: u.Pinned, QuotaBytes: u.Quota,
		})
	}
	return reply, nil
}

// GetStats implements adminpb.AdminServer.
func (s *Service) GetStats(context.Context, *adminpb.GetStatsRequest) (*adminpb.GetStatsReply, error) {
	st := s.cfg.Stats()
	reply := &adminpb.GetStatsReply{
		CapacityBytes: st.SizeBytes, PreparedBytes: st.CapacityBytes, UsedBytes: st.UsedBytes, LeasedBytes: st.LeasedBytes,
		PinnedBytes: st.PinnedBytes, IdleBytes: st.IdleBytes, Stored: amount(st.Chunks, st.UsedBytes),
		Namespaces: uint64(st.Namespaces), Clients: uint64(st.Clients), UndeclaredClients: uint64(st.Undeclared),
		OpenReads: uint64(st.OpenReads), OpenPuts: uint64(st.OpenPuts), Leases: uint64(st.Leases), Draining: st.Draining,
		EvictionPolicy: st.Policy, Counters: st.Counters,
	}
	if d := st.Disk; d != nil {
		reply.DiskCapacityBytes, reply.DiskUsedBytes, reply.DiskChunks = d.CapacityBytes, d.UsedBytes, uint64(d.Chunks)
	}
	for _, n := range st.Nodes {
		memory := &adminpb.NodeMemory{CapacityBytes: n.SizeBytes, PreparedBytes: n.CapacityBytes, UsedBytes: n.UsedBytes}
		if n.Node >= 0 {
			memory.Node = proto.Uint32(uint32(n.Node))
		}
		reply.Nodes = append(reply.Nodes, memory)
	}
	for _, r := range st.MissRatios {
		reply.MissRatios = append(reply.MissRatios, &adminpb.MissRatio{MemoryFactor: r.MemoryFactor, MissRatio: r.Ratio})
	}
	return reply, nil
}

// GetUsage implements adminpb.AdminServer.
func (s *Service) GetUsage(_ context.Context, r *adminpb.GetUsageRequest) (*adminpb.GetUsageReply, error) {
	reply := &adminpb.GetUsageReply{}
	add := func(u embedded.Usage, namespace []byte) {
		reply.Entries = append(reply.Entries, &adminpb.GetUsageReply_Entry{
			Namespace: namespace, Tag: u.Owner.Tag, Amount: amount(u.Chunks, u.Bytes),
			PinnedBytes: u.Pinned, QuotaBytes: u.Quota, RefusedPuts: u.Refused,
		})
	}
	if r.GetByTag() {
		for _, u := range s.cfg.Store.UsageByTag() {
			add(u, nil)
		}
		return reply, nil
	}
	names := s.names()
	for _, u := range s.cfg.Store.UsageByNamespace() {
		add(u, names.digest(u.Owner.Namespace))
	}
	return reply, nil
}

// TopPrefixes implements adminpb.AdminServer.
func (s *Service) TopPrefixes(_ context.Context, r *adminpb.TopPrefixesRequest) (*adminpb.TopPrefixesReply, error) {
	if r.GetLimit() < 1 || r.GetLimit() > MaxPrefixes {
		return nil, invalid("limit: %d; want 1 to %d", r.GetLimit(), MaxPrefixes)
	}
	limit, only := int(r.GetLimit()), store.NamespaceID(0)
	ask := limit
	if len(r.GetNamespace()) > 0 {
		entry, err := s.namespace(r.GetNamespace())
		if err != nil {
			return nil, err
		}
		ask, only = MaxPrefixes, entry.ID
	}
	names, reply := s.names(), &adminpb.TopPrefixesReply{}
	for _, p := range s.cfg.Store.TopPrefixes(ask) {
		spec := names[p.Namespace]
		if spec == nil || int(p.Group) >= len(spec.Groups) || len(r.GetNamespace()) > 0 && p.Namespace != only {
			continue
		}
		entry := &adminpb.TopPrefixesReply_Entry{
			Namespace: names.digest(p.Namespace), Group: p.Group, Leaf: p.Leaf[:spec.HashBytes], Hits: p.Hits,
			Amount: amount(p.Chunks, p.Bytes), Tokens: uint64(p.Chunks) * uint64(spec.Groups[p.Group].BlockTokens),
		}
		if p.Root != (kv.Hash{}) {
			entry.Root = p.Root[:spec.HashBytes]
		}
		if reply.Prefixes = append(reply.Prefixes, entry); len(reply.Prefixes) == limit {
			break
		}
	}
	return reply, nil
}

// ListQuotas implements adminpb.AdminServer.
func (s *Service) ListQuotas(context.Context, *adminpb.ListQuotasRequest) (*adminpb.ListQuotasReply, error) {
	names, reply := s.names(), &adminpb.ListQuotasReply{}
	for _, u := range append(s.cfg.Store.UsageByNamespace(), s.cfg.Store.UsageByTag()...) {
		if u.Quota == 0 {
			continue
		}
		entry := &adminpb.ListQuotasReply_Entry{Tag: u.Owner.Tag, QuotaBytes: u.Quota, UsedBytes: u.Bytes, RefusedPuts: u.Refused}
		if u.Owner.Tag == "" {
			entry.Namespace = names.digest(u.Owner.Namespace)
		}
		reply.Quotas = append(reply.Quotas, entry)
	}
	return reply, nil
}

// GetConfiguration implements adminpb.AdminServer.
func (s *Service) GetConfiguration(context.Context, *adminpb.GetConfigurationRequest) (*adminpb.GetConfigurationReply, error) {
	if s.cfg.Settings == nil {
		return nil, status.Error(codes.FailedPrecondition, "this daemon was started without a configuration that it could show")
	}
	reply := &adminpb.GetConfigurationReply{}
	for _, c := range s.cfg.Settings() {
		reply.Settings = append(reply.Settings, &adminpb.GetConfigurationReply_Setting{
			Section: c.Section, Key: c.Key, Value: c.Value, Origin: string(c.Origin), Where: c.Where,
		})
	}
	return reply, nil
}
