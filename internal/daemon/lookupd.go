package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/proc"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unary"
	"github.com/mooncake-sidecar/sidecar/internal/version"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/lookupd"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

const (
	// maintenanceInterval is how often leases expire and dead clients are looked
	// for.
	maintenanceInterval = time.Second
	// stopTimeout bounds the wait for calls under way.
	stopTimeout = time.Second
	// callWindowBytes is sent without waiting for the peer to take it: more than a
	// call on the latency path has. A fixed window also spares the pings that
	// gRPC measures the connection with.
	callWindowBytes = 4 << 20
	// callWorkers keep their stacks from call to call.
	callWorkers = 4
	// maxMessageBytes bounds a gRPC message: a batch of a million chunks.
	maxMessageBytes = 128 << 20
)

// errIdle ends a daemon that nobody uses.
var errIdle = errors.New("no session for the linger time")

// RunLookupd is mooncake-lookupd. It returns nil when ctx ends or after the
// linger time, and ErrAlreadyRunning when the runtime directory has a lookupd.
func RunLookupd(ctx context.Context, cfg *config.LookupdConfig, control Control, log *slog.Logger) (err error) {
	sup := supervise(log)
	dir, err := runtimeDir(cfg.RuntimeDir)
	if err != nil {
		return err
	}
	sessions, err := listenSessions(dir, config.LookupdSocket, &cfg.Common, sup)
	if err != nil {
		return err
	}
	defer func() { _ = sessions.Close() }() // Serve has closed it, unless it was never reached
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	context.AfterFunc(ctx, func() { sup.Stopping("") })
	ops, err := operate(ctx, "mooncake-lookupd", dir, config.LookupdSocket, &cfg.Common, &cfg.HTTP, &control, sup, stop, log)
	if err != nil {
		return err
	}
	defer ops.close() //nolint:contextcheck // ctx is over by then
	ops.ready.SetProblem(checkStore, "the store is being opened")

	opts := storeOptions(cfg.EvictionPolicy, storeNodes(os.DirFS("/"), cfg.NUMA, log), log)
	opts.HugePages = cfg.HugePages == config.HugePagesAuto
	master, segment, err := openStore(ctx, dir, uint64(cfg.StoreBytes), opts, sup)
	if err != nil {
		return err
	}
	var far *remote
	defer func() { err = errors.Join(err, far.closeSegment(segment)) }()
	defer ops.close() //nolint:contextcheck // before the segment: a scrape reads it
	sup.settled(log)
	tier, err := newDiskTier(cfg, ops.registry, log)
	if err != nil {
		return err
	}
	if tier != nil {
		master.SetTier(tier)
	}
	if far, err = newCluster(cfg, dir, master, segment, ops.registry, log); err != nil {
		return err
	}
	if far != nil {
		master.SetCluster(far, cfg.Write == config.WriteBack)
		ops.ready.Spare(checkCluster, far.problem)
		if cfg.Mooncake.Events != "" {
			ops.ready.Spare(checkClusterEvents, far.eventsProblem)
		}
		ops.registry.AddCluster(master.Stats, far.Stats)
	}
	limitMemory()
	ops.watchStore(master.Stats)
	ops.registry.AddStore(master.Stats)
	ops.registry.AddDisk(master.Stats)

	transport, err := zmqx.NewWith(zmqx.Options{Mode: socketMode(&cfg.Common), Pulse: sup.pulse, Interval: sup.interval})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, transport.Close()) }()

	farEvents, err := far.followEvents(transport)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, farEvents.Close()) }()

	var background sync.WaitGroup
	defer background.Wait()
	defer stop(nil) // before the wait for the background

	idle := newLinger(lingerTime(&cfg.Common), func() { stop(errIdle) })
	defer idle.stop()
	misses, err := newCurve(master.Stats().Policy)
	if err != nil {
		return err
	}
	ops.registry.AddMissRatio(misses.points)
	background.Go(func() { misses.run(ctx, func() uint64 { return master.Stats().CapacityBytes }) })
	events, err := publishEvents(ctx, cfg, dir, master, tier, transport, &background, log)
	if err != nil {
		return err
	}
	defer events.close(log)
	ops.registry.AddEvents(events.stats, func() uint64 { return master.Stats().Changes })
	server := lookupd.New(lookupd.Config{
		Catalog:     catalog{master},
		Listen:      lookupSockets(transport),
		Adopt:       adoptChannel,
		Pulse:       sup.pulse,
		LeaseTTL:    cfg.LeaseTTL,
		Welcome:     welcome("mooncake-lookupd", &cfg.Common),
		StoreClient: storeClients(master, segment),
		OnBusy:      idle.sessions,
		Took:        ops.registry.LookupTimes(),
		Sampler:     misses.tap,
		Events:      events.streamOf,
		Log:         log,
	})
	master.OnReset(server.NamespaceReset)
	ops.registry.AddLookupd(server.Stats)
	service := embedded.NewService(master, func() map[string]uint64 { return lookupCounters(server.Stats()) })
	people := &operators{
		master: master, lookups: server.Stats, misses: misses, settings: control.Settings, log: log,
		ready: func() bool { _, ready := ops.ready.Verdicts(); return ready },
	}
	calls, err := serveStore(filepath.Join(dir, config.StoreSocket), func(calls *grpc.Server) {
		storepb.RegisterStoreServer(calls, service)
		people.register(ctx, calls, !cfg.GRPCNoReflection)
	}, &background, stop, log)
	if err != nil {
		return err
	}
	defer stopCalls(calls)
	timedCalls := &timedStore{service, ops.registry.StoreCallTimes(callPutStart, callPutEnd, callGet, callRelease)}
	fast, err := serveWorkers(filepath.Join(dir, config.CallsSocket), timedCalls, &background, stop, log) //nolint:contextcheck // a call has its connection's
	if err != nil {
		return err
	}
	defer fast.Stop(stopTimeout)
	background.Go(func() { maintain(ctx, master, sup, log) })
	if tier != nil {
		background.Go(func() { runDiskTier(ctx, tier, log) })
	}
	if far != nil {
		background.Go(func() { far.run(ctx) })
	}
	log.Info("mooncake-lookupd is ready", "runtime_dir", dir, "version", version.Version, "pid", os.Getpid(),
		"store_bytes", cfg.StoreBytes.String(), "eviction_policy", cfg.EvictionPolicy, "lease_ttl", cfg.LeaseTTL, "autostarted", cfg.Autostarted, "linger", cfg.Linger)
	ops.serving(ctx)
	err = server.Serve(ctx, lookupdSessions{sessions, sup.accept(sessions, func() {})})
	return endOf(ctx, err, log)
}

// endOf logs why a daemon ends and returns the error of it, if it is one.
func endOf(ctx context.Context, err error, log *slog.Logger) error {
	cause := context.Cause(ctx)
	switch {
	case err != nil:
		return err
	case cause == nil || errors.Is(cause, context.Canceled):
		log.Info("stopping")
	case errors.Is(cause, errIdle):
		log.Info("stopping", "reason", cause)
	default:
		return cause
	}
	return nil
}

// lingerTime returns how long a daemon stays without sessions, 0 for ever.
func lingerTime(c *config.Common) time.Duration {
	if !c.Autostarted {
		return 0
	}
	return c.Linger
}

func welcome(name string, c *config.Common) connector.Welcome {
	return connector.Welcome{
		Type: connector.TypeWelcome, Protocol: connector.ProtocolVersion,
		Daemon: name, Version: version.Version, PID: os.Getpid(), Autostarted: c.Autostarted,
	}
}

// storeClients serves the sessions of workers.
func storeClients(master *embedded.Master, segment *shm.Segment) func(context.Context, *lookupd.Session) error {
	return func(_ context.Context, s *lookupd.Session) error {
		pid := s.PeerPID()
		start, err := proc.StartTime(pid)
		if err != nil {
			return fmt.Errorf("the worker's process can't be seen from here; both daemons must share a pid namespace: %w", err)
		}
		return master.ServeClient(s, embedded.ClientProcess{PID: uint32(pid), Start: start}, s.Number, segment.FD())
	}
}

// serveStore starts the gRPC services of the store's socket, which register adds;
// a fault of its own ends the daemon.
func serveStore(path string, register func(*grpc.Server), background *sync.WaitGroup, fail func(error), log *slog.Logger) (*grpc.Server, error) {
	l, err := listenOwn(path, log)
	if err != nil {
		return nil, err
	}
	calls := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.InitialWindowSize(callWindowBytes), grpc.InitialConnWindowSize(callWindowBytes), grpc.NumStreamWorkers(callWorkers))
	register(calls)
	background.Go(func() {
		if err := calls.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			fail(fmt.Errorf("store service: %w", err))
		}
	})
	return calls, nil
}

// serveWorkers starts the same service for the calls of workers.
func serveWorkers(path string, service storepb.StoreServer, background *sync.WaitGroup, fail func(error), log *slog.Logger) (*unary.Server, error) {
	l, err := listenOwn(path, log)
	if err != nil {
		return nil, err
	}
	calls := unary.NewServer(maxMessageBytes)
	storepb.RegisterStoreServer(calls, service)
	background.Go(func() {
		if err := calls.Serve(l); err != nil {
			fail(fmt.Errorf("store calls: %w", err))
		}
	})
	return calls, nil
}

// stopCalls lets the calls under way finish, within bounds.
func stopCalls(calls *grpc.Server) {
	timer := time.AfterFunc(stopTimeout, calls.Stop)
	defer timer.Stop()
	calls.GracefulStop()
}

// lookupCounters names what was asked on the lookup sockets, for status.
func lookupCounters(s lookupd.Stats) map[string]uint64 {
	out := map[string]uint64{
		"lookups": s.Total.Lookups, "lookups_pending": s.Total.Pending, "lookup_resets": s.Total.Resets,
		"lookup_query_tokens": s.Total.QueryTokens, "lookup_hit_tokens": s.Total.HitTokens,
		"sessions_refused": s.SessionsRefused, "sessions_broken": s.SessionsBroken,
	}
	for reason, n := range s.Total.Errors {
		out["lookup_errors_"+lookupd.Reason(reason).String()] = n
	}
	return out
}
