package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/metrics"
	"github.com/mooncake-sidecar/sidecar/internal/mooncakec"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
)

const (
	// putQueueShare is the part of the store that may wait to be put into the cluster.
	putQueueShare = 8
	minPutQueue   = 8 << 20
	maxPutQueue   = 1 << 30
	// canaryBytes are of the segment's header, which has no KV.
	canaryBytes = 64
)

// remote is a cluster below the node's store.
type remote struct {
	*level.Level
	way      way
	client   *mooncake.Client
	log      *slog.Logger
	eventsAt string // "": they are not followed
	// left: the segment may be touched until this process ends. Set by run.
	left bool
}

var _ embedded.Cluster = (*remote)(nil)

// Glance implements embedded.Cluster.
func (r *remote) Glance(digest [32]byte) embedded.Glance { return r.Level.Glance(digest) }

// clusterConfig reads how the cluster is reached.
func clusterConfig(m *config.Mooncake) (cluster.Config, []string, error) {
	return cluster.Load(func(name string) string {
		if name == cluster.EnvPath && m.ConfigPath != "" {
			return m.ConfigPath
		}
		return os.Getenv(name)
	})
}

// newCluster makes the way to the cluster, nil if none is configured. Nothing is
// started yet.
func newCluster(cfg *config.LookupdConfig, dir string, master *embedded.Master, segment *shm.Segment, registry *metrics.Registry, log *slog.Logger) (*remote, error) {
	if cfg.Store != config.StoreMooncake {
		return nil, nil
	}
	log = log.With("store", config.StoreMooncake)
	reached, notes, err := clusterConfig(&cfg.Mooncake)
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		log.Warn("the Mooncake cluster's configuration", "note", note)
	}
	r := &remote{log: log}
	if r.way, err = newWay(&cfg.Mooncake, &reached, segment, master, true, log); err != nil {
		return nil, err
	}
	how := mooncake.Replication{Replicas: cfg.Replicas}
	if reached.PreferredSegment != "" {
		how.PreferredSegments = []string{reached.PreferredSegment}
	}
	r.client = mooncake.NewClient(mooncake.ClientOptions{Engine: r.way, Memory: segment.Bytes(), Canary: mooncake.Range{Bytes: canaryBytes}, Replication: how, Lease: cfg.Mooncake.Lease, Log: log})
	asked, put, got := registry.ClusterTimes()
	r.Level = level.New(level.Options{
		Client: r.client, Memory: segment.Bytes(), Lease: cfg.Mooncake.Lease,
		QueueBytes:   min(max(uint64(cfg.StoreBytes)/putQueueShare, minPutQueue), maxPutQueue),
		ResetCluster: cfg.Reset == config.ResetCluster, Asked: asked, PutTook: put, GetTook: got, Log: log,
		Notes: &removalNotes{path: filepath.Join(dir, config.RemovalsFile)}, Events: cfg.Events != "", EventTenant: reached.TenantID,
	})
	r.eventsAt = cfg.Events
	log.Info("a Mooncake cluster is below the store", "master", reached.MasterServerAddress, "protocol", reached.Protocol, "lent_bytes", reached.GlobalSegmentBytes,
		"write", cfg.Write, "reset", cfg.Reset, "python", cfg.StorePython, "library", cfg.Library, "events", cfg.Events)
	return r, nil
}

// run keeps the cluster below the store until ctx ends. Mooncake's client ends
// first, so that no transfer is waited for.
func (r *remote) run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() {
		err := r.way.Run(ctx)
		r.left = errors.Is(err, mooncakec.ErrLeft)
		if ctx.Err() == nil || r.left {
			r.log.Error("there is no way to the Mooncake cluster any more", "error", err)
		}
	})
	r.Level.Run(ctx)
	both.Wait()
	r.client.Close()
}

// followEvents follows the master's KV events, if that is asked for, until the closer is
// closed.
func (r *remote) followEvents(transport *zmqx.Transport) (io.Closer, error) {
	if r == nil || r.eventsAt == "" {
		return closers{}, nil
	}
	following, err := transport.Subscribe(r.eventsAt, "", r.Hear, r.Linked)
	if err != nil {
		return nil, fmt.Errorf("mooncake_events: %w", err)
	}
	return following, nil
}

// closeSegment unmaps the segment, unless somebody in this process may touch it yet.
//
// REQUIRES: run has returned.
func (r *remote) closeSegment(segment *shm.Segment) error {
	if r != nil && r.left {
		return nil
	}
	return segment.Close()
}

// problem says why the node goes without the cluster, "" while it does not.
func (r *remote) problem() string {
	if why := r.Problem(); why != "" {
		return "the Mooncake cluster is not in service, the node goes on with what it has: " + why
	}
	return ""
}

// eventsProblem says why the node knows nothing by events, "" while it may.
func (r *remote) eventsProblem() string {
	if why := r.EventsProblem(); why != "" {
		return "the KV events of the Mooncake cluster's master, " + r.eventsAt + ", are not heard, lookups ask the cluster: " + why
	}
	return ""
}
