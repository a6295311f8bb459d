package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/registry"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/version"
)

// Checks of the conductor's /readyz.
const (
	checkIndex   = "index"   // the index may be asked
	checkStatic  = "static"  // the configuration's services are registered; spare
	checkEngines = "engines" // serve: an engine can be sent to
)

// conductorName is the program's.
const conductorName = "mooncake-conductor"

// conductorIndex is an index with what runs it.
type conductorIndex interface {
	api.Indexer
	// RegisterAs is Register for what the configuration names, or its engines tell of.
	RegisterAs(ctx context.Context, how contract.Ways, service contract.Service) (contract.Registered, error)
	// Run follows streams and writes snapshots until ctx ends, and returns when nothing of
	// it is left. REQUIRES: it is called, once.
	Run(ctx context.Context) error
}

// openFunc makes an index that begins with a snapshot, of whose services those of the
// configuration are static, and returns what is to be closed when it has run.
type openFunc func(ctx context.Context, cfg *config.ConductorConfig, static []contract.Service, sup *supervision, log *slog.Logger) (conductorIndex, func() error, error)

// runConductor is RunConductor with any index, which open makes.
func runConductor(ctx context.Context, cfg *config.ConductorConfig, serve bool, control Control,
	open openFunc, log *slog.Logger,
) (err error) {
	sup := supervise(log)
	for _, note := range cfg.Notes {
		log.Warn(note)
	}
	dir, err := runtimeDir(cfg.RuntimeDir)
	if err != nil {
		return err
	}
	front, err := newFront(cfg)
	if err != nil {
		return err
	}
	l, err := listenConductor(ctx, cfg.Listen, sup)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the server has closed it, unless that was never reached
	sup.settled(log)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	context.AfterFunc(ctx, func() { sup.Stopping("") })
	front.reloads(&control)
	ops, err := operate(ctx, conductorName, dir, config.ConductorSocket(portOf(l)), &cfg.Common, &config.HTTP{}, &control, sup, stop, log)
	if err != nil {
		return err
	}
	defer ops.close() //nolint:contextcheck // ctx is over by then

	static, faults := staticServices(cfg.Static)
	index, closeIndex, err := open(ctx, cfg, static, sup, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeIndex()) }()
	defer ops.close() //nolint:contextcheck // before the index: a scrape asks it
	ops.ready.Set(checkIndex, func() string { return strings.Join(index.Unready(), "; ") })
	ops.registry.AddConductor(index.Stats, index.Services)

	client := &http.Client{Transport: engineTransport(), Timeout: engineTimeout}
	defer client.CloseIdleConnections()
	server := api.New(api.Config{
		Index: index, MaxBodyBytes: int64(cfg.MaxBodyBytes), Version: version.Version, Log: log, //nolint:gosec // a gibibyte at most
		Answered: ops.registry.ConductorCalls(append(api.Calls(), api.GRPCCalls()...)),
		Discover: func(ctx context.Context, engine string, wish contract.Service) ([]contract.Service, error) {
			return registry.Sources(ctx, client, engine, &wish)
		},
	})
	front.add(server, ops.server.Handler())

	var background sync.WaitGroup
	defer background.Wait()
	defer stop(nil) // before the wait for the background
	// What calls need outlasts those under way.
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	background.Go(func() { trimHeap(ctx) })
	background.Go(func() {
		if err := index.Run(work); err != nil {
			stop(fmt.Errorf("index: %w", err))
		}
	})
	missing := strings.ReplaceAll(textOf(registerStatic(ctx, static, faults, index, log)), "\n", "; ")
	ops.ready.Spare(checkStatic, func() string { return missing })
	engines, err := config.ParseEngines(cfg.Engines)
	if err != nil {
		return err
	}
	if len(engines) > 0 {
		// The key is for engines that the configuration names, not for those of /register.
		key, err := engineKey(cfg)
		if err != nil {
			return err
		}
		asking := client
		if key != "" {
			asking = &http.Client{Transport: &bearer{key, client.Transport}, Timeout: engineTimeout, CheckRedirect: noRedirect}
		}
		f := newFollower(engines, index, asking, log)
		background.Go(func() { f.run(ctx) })
	}
	if serve {
		routed, err := newRouting(cfg, engines, index, log)
		if err != nil {
			return err
		}
		routed.router.Observe(ops.registry.RouterTimes())
		ops.registry.AddRouter(routed.router.Stats, routed.fleet.Views)
		background.Go(func() { routed.run(work, stop) })
		ops.ready.Set(checkEngines, routed.problem)
		front.mount(routed.router)
	}
	if err := front.serveGRPC(ctx, cfg, server, func() bool { _, ready := ops.ready.Verdicts(); return ready }, &background, stop, log); err != nil {
		return err
	}
	background.Go(func() { beat(ctx, index, sup) })
	log.Info("mooncake-conductor is ready", "listen", l.Addr().String(), "tls", front.tls != nil, "tokens", cfg.TokenFile != "", "serve", serve,
		"version", version.Version, "pid", os.Getpid(), "index_bytes", cfg.IndexBytes.String(), "services", len(static), "engines", len(engines))
	ops.serving(ctx)
	sup.Ready("listening at " + l.Addr().String())
	return endOf(ctx, front.serve(ctx, l, log), log)
}

// listenConductor listens at an address, or takes the socket of the service manager.
func listenConductor(ctx context.Context, address string, sup *supervision) (net.Listener, error) {
	if file := sup.sessionSocket(); file != nil {
		l, err := net.FileListener(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("the service manager's socket: %w", err)
		}
		return l, nil
	}
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", address)
	if isTaken(err) {
		return nil, fmt.Errorf("%w: something listens at %s", ErrAlreadyRunning, address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// portOf is the port that a listener has; its address for another kind.
func portOf(l net.Listener) string {
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		return fmt.Sprint(tcp.Port)
	}
	return "socket"
}

// beat shows the service manager that the index answers.
func beat(ctx context.Context, index api.Indexer, sup *supervision) {
	if sup.pulse == nil {
		return
	}
	loop := sup.pulse.Join()
	ticker := time.NewTicker(sup.interval)
	defer ticker.Stop()
	for {
		index.Query(&contract.Query{Model: conductorName, Tenant: conductorName, BlockTokens: 1}, nil) // it would wait for what hangs
		_ = index.Stats()
		loop.Beat()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
