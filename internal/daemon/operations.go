package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/admin"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/metrics"
	"github.com/mooncake-sidecar/sidecar/internal/version"
)

// Checks of /readyz; the names label a metric too.
const (
	checkSessions = "sessions" // the session socket is served
	checkStore    = "store"    // lookupd: the segment is mounted; worker: lookupd answers
	checkMemory   = "memory"   // the segment has memory
	checkCluster  = "cluster"  // the Mooncake cluster answers; spare
	// checkClusterEvents: its KV events are heard; spare.
	checkClusterEvents = "cluster_events"
	checkWorkers       = "workers" // nobody unknown may still write into the segment
)

// operations is what a daemon has for those who watch and operate it.
type operations struct {
	ready    admin.Readiness
	registry *metrics.Registry
	server   *admin.Server
	running  sync.WaitGroup
	stop     context.CancelFunc
}

// operate begins to answer operators: from here on the daemon is alive, and not
// ready. A socket in the runtime directory that can't be had is no reason to do
// without the daemon; an address that was asked for is.
//
// REQUIRES: the caller holds the session socket.
func operate(ctx context.Context, program, dir, session string, common *config.Common, http *config.HTTP, control *Control, sup *supervision,
	failed func(error), log *slog.Logger,
) (*operations, error) {
	ctx, stop := context.WithCancel(ctx)
	o := &operations{registry: metrics.NewRegistry(program, version.Version), stop: stop}
	o.ready.SetProblem(checkSessions, "the daemon is starting")
	o.registry.AddReadiness(func() map[string]bool {
		verdicts, _ := o.ready.Verdicts()
		out := make(map[string]bool, len(verdicts))
		for _, v := range verdicts {
			out[v.Check] = v.OK
		}
		return out
	})
	settings := admin.Config{
		Daemon: program, Version: version.Version, Revision: metrics.Revision(), Ready: &o.ready, Metrics: o.registry.Handler(),
		Level: control.level(), SetLevel: control.setLevel(log), Log: log,
	}
	if control.Reload != nil {
		settings.Reload = func() admin.Reloaded { return control.reload(log) }
	}
	o.server = admin.New(settings)
	path := filepath.Join(dir, config.AdminSocket(session))
	if l, err := listenOwn(path, log); err != nil {
		log.Warn("no administration socket: metrics and health can't be asked for there", "socket", path, "error", err)
	} else {
		o.server.Serve(l, true, failed)
	}
	if err := o.listenTCP(ctx, common, http, failed, log); err != nil {
		o.close() //nolint:contextcheck // it has a time limit of its own
		return nil, err
	}
	control.reloads(ctx, &o.running, sup.reloading, log)
	return o, nil
}

// listenTCP serves the address that was asked for.
func (o *operations) listenTCP(ctx context.Context, common *config.Common, http *config.HTTP, failed func(error), log *slog.Logger) error {
	if http.HTTPListen == "" {
		return nil
	}
	if common.Autostarted {
		log.Info("http_listen is for daemons that are started by hand or as units; this one was autostarted", "http_listen", http.HTTPListen)
		return nil
	}
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", http.HTTPListen)
	if err != nil {
		return fmt.Errorf("http_listen: %w", err)
	}
	log.Info("health and metrics over TCP", "address", l.Addr().String())
	o.server.Serve(l, false, failed)
	return nil
}

// serving says that sessions are taken from here on, until ctx ends.
func (o *operations) serving(ctx context.Context) {
	o.ready.Set(checkSessions, func() string {
		if ctx.Err() != nil {
			return "the daemon is stopping"
		}
		return ""
	})
}

// close ends the answers and waits. It may be called again.
func (o *operations) close() {
	o.stop()
	o.server.Close()
	o.running.Wait()
}
