package daemon

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// healthInterval is how often a watched health is looked at.
const healthInterval = time.Second

// health answers grpc.health.v1 from the checks of /readyz. All services of the
// daemon are well together; each may be asked for by name.
type health struct {
	healthpb.UnimplementedHealthServer
	ready func() bool
	// ctx is the daemon's: who watches is let go when it ends.
	ctx context.Context
	// services are the names that it knows, the empty one for the daemon.
	services []string
}

// storeServices are those of lookupd.
func storeServices() []string {
	return []string{"", storepb.Store_ServiceDesc.ServiceName, adminpb.Admin_ServiceDesc.ServiceName}
}

func (h *health) status(service string) healthpb.HealthCheckResponse_ServingStatus {
	for _, known := range h.services {
		if known != service {
			continue
		}
		if h.ready() && h.ctx.Err() == nil {
			return healthpb.HealthCheckResponse_SERVING
		}
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
}

// Check implements healthpb.HealthServer.
func (h *health) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s := h.status(r.GetService())
	if s == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, grpcstatus.Errorf(codes.NotFound, "no service %.80q; there are %q", r.GetService(), h.services)
	}
	return &healthpb.HealthCheckResponse{Status: s}, nil
}

// List implements healthpb.HealthServer.
func (h *health) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	all := map[string]*healthpb.HealthCheckResponse{}
	for _, name := range h.services {
		all[name] = &healthpb.HealthCheckResponse{Status: h.status(name)}
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

// Watch implements healthpb.HealthServer.
func (h *health) Watch(r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	said := healthpb.HealthCheckResponse_UNKNOWN
	for {
		if now := h.status(r.GetService()); now != said {
			said = now
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-stream.Context().Done():
			return grpcstatus.FromContextError(stream.Context().Err()).Err()
		case <-h.ctx.Done():
			return grpcstatus.Error(codes.Unavailable, "the daemon is stopping")
		}
	}
}
