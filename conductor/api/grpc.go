package api

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// GRPC answers the calls of conductorpb. It is safe for concurrent use.
type GRPC struct {
	conductorpb.UnimplementedConductorServer
	s *Server
}

// GRPC returns the same calls as a gRPC service.
func (s *Server) GRPC() *GRPC { return &GRPC{s: s} }

// GRPCCalls are the methods that GRPC serves.
func GRPCCalls() (methods []string) {
	name := conductorpb.Conductor_ServiceDesc.ServiceName
	for _, m := range conductorpb.Conductor_ServiceDesc.Methods {
		methods = append(methods, "/"+name+"/"+m.MethodName)
	}
	for _, m := range conductorpb.Conductor_ServiceDesc.Streams {
		methods = append(methods, "/"+name+"/"+m.StreamName)
	}
	return methods
}

// statusError says what an error is to a caller.
func statusError(err error) error {
	code := codes.Internal
	switch {
	case err == nil:
		return nil
	case errors.Is(err, contract.ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, contract.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, contract.ErrConflict):
		code = codes.AlreadyExists
	case errors.Is(err, contract.ErrLimit), errors.Is(err, errBusy):
		code = codes.ResourceExhausted
	}
	return grpcstatus.Error(code, err.Error())
}

// Register implements conductorpb.ConductorServer.
func (g *GRPC) Register(ctx context.Context, r *conductorpb.RegisterRequest) (*conductorpb.RegisterReply, error) {
	s := r.GetService()
	made := registration{
		Service: contract.Service{
			Endpoint: s.GetEndpoint(), ReplayEndpoint: s.GetReplayEndpoint(), Topic: s.GetTopic(), Model: s.GetModel(), LoRA: s.GetLora(), Tenant: s.GetTenant(),
			Instance: s.GetInstance(), AdditionalSalt: s.GetAdditionalSalt(),
			Hash: contract.HashProfile{Algorithm: s.GetHashAlgorithm(), Seed: s.GetPythonHashSeed()},
		},
		kind: s.GetType(), blockSize: number{int64(s.GetBlockTokens()), s.GetBlockTokens() != 0}, rank: number{int64(s.GetRank()), true},
	}
	for name, text := range map[string]string{"endpoint": made.Endpoint, "replay_endpoint": made.ReplayEndpoint, "topic": made.Topic, "model": made.Model,
		"lora": made.LoRA, "tenant": made.Tenant, "instance": made.Instance, "additional_salt": made.AdditionalSalt} {
		if len(text) > maxTextBytes {
			return nil, statusError(&contract.FieldError{Field: name, Reason: reasonRange, Text: "too long"})
		}
	}
	if err := made.complete(); err != nil {
		return nil, statusError(err)
	}
	done, err := g.s.cfg.Index.Register(ctx, made.Service)
	if err != nil {
		return nil, statusError(err)
	}
	return &conductorpb.RegisterReply{Existed: done.Existed, Warnings: done.Warnings}, nil
}

// Unregister implements conductorpb.ConductorServer.
func (g *GRPC) Unregister(ctx context.Context, r *conductorpb.UnregisterRequest) (*conductorpb.UnregisterReply, error) {
	named := registration{Service: contract.Service{Instance: r.GetInstance(), Tenant: r.GetTenant()}, rank: number{int64(r.GetRank()), true}}
	if err := named.completeKey(); err != nil {
		return nil, statusError(err)
	}
	if err := g.s.cfg.Index.Unregister(ctx, named.Key()); err != nil {
		return nil, statusError(err)
	}
	return &conductorpb.UnregisterReply{}, nil
}

// ListServices implements conductorpb.ConductorServer.
func (g *GRPC) ListServices(context.Context, *conductorpb.ListServicesRequest) (*conductorpb.ListServicesReply, error) {
	all := g.s.cfg.Index.Services()
	reply := &conductorpb.ListServicesReply{}
	for i := range all {
		s := &all[i]
		reply.Services = append(reply.Services, &conductorpb.ServiceStatus{
			Service: &conductorpb.Service{
				Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, Type: s.Type, Model: s.Model, Lora: s.LoRA, Tenant: s.Tenant, Instance: s.Instance,
				BlockTokens: uint32(s.BlockTokens), Rank: int32(s.Rank), AdditionalSalt: s.AdditionalSalt, Topic: s.Topic, //nolint:gosec // bounded at registration
				HashAlgorithm: s.Hash.Algorithm, PythonHashSeed: s.Hash.Seed,
			},
			State: stateOf(s.State), CompleteSince: s.Since, NextSequence: s.Next, HeardMs: milliseconds(s.Heard), Reason: s.Reason, Hashing: s.Hashing, Warnings: s.Warnings,
		})
	}
	return reply, nil
}

func stateOf(s contract.State) conductorpb.State {
	return conductorpb.State(s) + conductorpb.State_CONNECTING
}

// Query implements conductorpb.ConductorServer.
func (g *GRPC) Query(ctx context.Context, r *conductorpb.QueryRequest) (*conductorpb.QueryReply, error) {
	done, err := g.s.codec.taken(ctx, r)
	defer done()
	if err != nil {
		return nil, statusError(err)
	}
	sc := g.s.rooms.take()
	defer g.s.rooms.give(sc)
	return g.s.answerGRPC(r, sc)
}

// QueryStream implements conductorpb.ConductorServer. Each of its queries counts as a
// call, and has memory only while it is answered.
func (g *GRPC) QueryStream(stream grpc.BidiStreamingServer[conductorpb.QueryRequest, conductorpb.QueryReply]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		began := time.Now()
		reply, err := g.Query(stream.Context(), r)
		g.s.counted(conductorpb.Conductor_QueryStream_FullMethodName, began, err)
		if err != nil {
			return err
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

func (s *Server) answerGRPC(r *conductorpb.QueryRequest, sc *scratch) (*conductorpb.QueryReply, error) {
	q := &question{
		Query: contract.Query{
			Model: r.GetModel(), LoRA: r.GetLora(), Tenant: r.GetTenant(), Instance: r.GetInstance(), CacheSalt: r.GetCacheSalt(),
			AdditionalSalt: r.GetAdditionalSalt(), HasAdditionalSalt: r.AdditionalSalt != nil, Tokens: r.GetTokens(),
		},
		hasModel: true, hasTokens: true, blockSize: number{int64(r.GetBlockTokens()), r.GetBlockTokens() != 0},
	}
	// The message has taken its room already; this is for what is made of it.
	if err := sc.need(len(r.GetTokenIds())*tokenBytes + len(r.GetSeqHashes())*hashBytes); err != nil {
		return nil, statusError(err)
	}
	given := 0
	for _, is := range []bool{len(r.GetTokens()) > 0, len(r.GetTokenIds()) > 0, len(r.GetSeqHashes()) > 0} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, statusError(&contract.FieldError{Field: "tokens", Reason: reasonValue, Text: "more than one of tokens, token_ids and seq_hashes"})
	case len(q.Tokens)%tokenBytes != 0:
		return nil, statusError(&contract.FieldError{Field: "tokens", Reason: reasonRange, Text: "want four bytes for each token, little-endian"})
	case len(r.GetTokenIds()) > 0:
		sc.tokens = sc.tokens[:0]
		for _, token := range r.GetTokenIds() {
			sc.tokens = binary.LittleEndian.AppendUint32(sc.tokens, token)
		}
		q.Tokens = sc.tokens
	case len(r.GetSeqHashes()) > 0:
		sc.hashes = sc.hashes[:0]
		for _, hash := range r.GetSeqHashes() {
			sc.hashes = append(sc.hashes, kvevents.Hash(hash))
		}
		q.Hashes = sc.hashes
	}
	if err := q.complete(); err != nil {
		return nil, statusError(err)
	}
	if err := s.find(q, sc); err != nil {
		return nil, statusError(err)
	}
	reply := &conductorpb.QueryReply{}
	instances(sc.matches, func(ranks []contract.RankMatch) {
		t := totalOf(ranks)
		one := &conductorpb.InstanceMatch{Instance: ranks[0].Instance, LongestMatched: uint64(t.longest), Complete: t.state == contract.Complete && !t.truncated, Foreign: t.foreign} //nolint:gosec // never negative
		for i := range ranks {
			m := &ranks[i]
			one.Ranks = append(one.Ranks, &conductorpb.RankMatch{
				Rank: int32(m.Rank), Held: tiersOf(&m.In), Through: tiersOf(&m.Through), State: stateOf(m.State), CompleteSince: m.Since, Truncated: m.Truncated, //nolint:gosec // bounded at registration
			})
		}
		reply.Instances = append(reply.Instances, one)
	})
	return reply, nil
}

func tiersOf(in *[3]int) *conductorpb.Tiers {
	return &conductorpb.Tiers{Gpu: uint64(in[prefixindex.GPU]), Cpu: uint64(in[prefixindex.CPU]), Disk: uint64(in[prefixindex.Disk])} //nolint:gosec // never negative
}

// Guard returns what a gRPC server needs so that only those are let in who have a token,
// calls are counted, and what is read and decoded is bounded: the first where the server
// listens at a Listener of ours. A call without a token ends before a byte of its message is
// read. Calls of open need none: health.
func (s *Server) Guard(tokens *Tokens, open func(method string) bool) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(s.codec),
		grpc.StatsHandler(&s.arrivals),
		grpc.StatsHandler(s.codec),
		grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
			if open(call.FullMethodName) {
				return ctx, nil
			}
			authorization := ""
			if values := call.Header.Get("authorization"); len(values) == 1 {
				authorization = values[0]
			}
			if !tokens.Allows(authorization) {
				err := grpcstatus.Error(codes.Unauthenticated, errToken.Error())
				s.counted(call.FullMethodName, time.Now(), err)
				return nil, err
			}
			return ctx, nil
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (reply any, err error) {
			defer func(began time.Time) { s.counted(info.FullMethod, began, err) }(time.Now())
			return handle(ctx, req)
		}),
	}
}

// Listener returns a listener whose connections, together, have no more under way that no call
// has read than calls may take.
func (s *Server) Listener(l net.Listener) net.Listener { return &arrivalListener{l, &s.arrivals} }

// counted tells of a call of gRPC as of one of HTTP.
func (s *Server) counted(method string, began time.Time, err error) {
	status := 200
	if err != nil {
		status = 400
		if code := grpcstatus.Code(err); code == codes.Internal || code == codes.Unknown {
			status = 500
		}
	}
	s.cfg.Answered(method, status, time.Since(began))
}
