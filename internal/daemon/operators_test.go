package daemon

import (
	"context"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// dialled returns a connection to the store's socket of a runtime directory.
func dialled(t *testing.T, dir string) *grpc.ClientConn {
	t.Helper()
	conn, err := dialStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Health is that of /readyz, for each service by name; a watch says when it
// changes and ends with the daemon.
func TestGRPCHealth(t *testing.T) {
	dir := shortDir(t)
	daemon := startLookupd(t, dir)
	ask := healthpb.NewHealthClient(dialled(t, dir))
	for _, name := range storeServices() {
		until(t, "health of "+name, func() bool {
			reply, err := ask.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			return err == nil && reply.GetStatus() == healthpb.HealthCheckResponse_SERVING
		})
	}
	if _, err := ask.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"}); grpcstatus.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
	list, err := ask.List(t.Context(), &healthpb.HealthListRequest{})
	if err != nil || len(list.GetStatuses()) != len(storeServices()) || list.GetStatuses()[""].GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", list, err)
	}
	unknown, err := ask.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unknown.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("watching an unknown service: %v, %v", got, err)
	}
	watch, err := ask.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("watching: %v, %v", got, err)
	}
	daemon.end()
	for {
		got, err := watch.Recv()
		if grpcstatus.Code(err) == codes.Unavailable {
			return
		}
		if err != nil || got.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("watching a daemon that has ended: %v, %v", got, err)
		}
	}
}

func TestHealthOfAnUnreadyDaemon(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ready := false
	h := &health{ready: func() bool { return ready }, ctx: ctx, services: storeServices()}
	want := func(status healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: storepb.Store_ServiceDesc.ServiceName}); err != nil || got.GetStatus() != status {
			t.Errorf("%v, %v, want %v", got, err, status)
		}
	}
	want(healthpb.HealthCheckResponse_NOT_SERVING)
	ready = true
	want(healthpb.HealthCheckResponse_SERVING)
	cancel() // it stops
	want(healthpb.HealthCheckResponse_NOT_SERVING)
}

// reflected returns the names of the services that reflection shows.
func reflected(t *testing.T, dir string) (names []string, err error) {
	t.Helper()
	stream, err := reflectpb.NewServerReflectionClient(dialled(t, dir)).ServerReflectionInfo(t.Context())
	if err != nil {
		return nil, err
	}
	request := &reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(request); err != nil && err != io.EOF {
		return nil, err
	}
	reply, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	for _, s := range reply.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names, nil
}

func TestReflection(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		dir := shortDir(t)
		cfg := lookupdConfig(t, dir)
		cfg.GRPCNoReflection = hidden
		start(t, func(ctx context.Context) error { return RunLookupd(ctx, cfg, Control{}, quiet) })
		until(t, "lookupd answers", func() bool { _, err := LookupdStatus(t.Context(), dir); return err == nil })
		names, err := reflected(t, dir)
		if hidden && grpcstatus.Code(err) != codes.Unimplemented {
			t.Errorf("hidden: %q, %v", names, err)
		}
		if !hidden && (err != nil || !slices.Contains(names, "grpc.health.v1.Health") || !slices.Contains(names, "mooncake_sidecar.store.v1.Store")) {
			t.Errorf("shown: %q, %v", names, err)
		}
	}
	if c := (config.LookupdConfig{}); c.GRPCNoReflection {
		t.Error("reflection is off by default")
	}
}
