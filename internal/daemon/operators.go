package daemon

import (
	"context"
	"log/slog"
	"maps"
	"math"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/admin/control"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/lookupd"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// operators are the gRPC services for people and their programs, beside the
// store's: administration, health, and reflection unless it is turned off.
type operators struct {
	master   *embedded.Master
	lookups  func() lookupd.Stats
	misses   *curve
	ready    func() bool
	settings func() []config.Setting
	log      *slog.Logger
}

// register adds the services to the server of the store's socket, which lets in
// the daemon's own user and root.
func (o *operators) register(ctx context.Context, calls *grpc.Server, reflect bool) {
	adminpb.RegisterAdminServer(calls, control.New(control.Config{Store: o.master, Stats: o.stats, Settings: o.settings, Log: o.log}))
	healthpb.RegisterHealthServer(calls, &health{ready: o.ready, ctx: ctx, services: storeServices()})
	if reflect {
		reflection.Register(calls)
	}
}

// stats puts together what the daemon's parts know.
func (o *operators) stats() control.Stats {
	s := o.master.Stats()
	counters := s.Counters()
	maps.Copy(counters, lookupCounters(o.lookups()))
	all := control.Stats{Stats: s, Counters: counters}
	for _, p := range o.misses.points() {
		if !math.IsNaN(p.HitRatio) {
			all.MissRatios = append(all.MissRatios, control.MissRatio{MemoryFactor: p.Factor, Ratio: 1 - p.HitRatio})
		}
	}
	return all
}
