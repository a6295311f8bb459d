package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/metrics"
	"github.com/mooncake-sidecar/sidecar/internal/proc"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

const (
	// putQueueShare is the part of the store that may wait to be put into the cluster.
	putQueueShare = 8
	minPutQueue   = 8 << 20
	maxPutQueue   = 1 << 30
)

// remote is a cluster below the node's store.
type remote struct {
	*level.Level
	engine *sideproc.Engine
	client *mooncake.Client
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
func newCluster(cfg *config.LookupdConfig, master *embedded.Master, segment *shm.Segment, registry *metrics.Registry, log *slog.Logger) (*remote, error) {
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
	python, err := exec.LookPath(cfg.StorePython)
	if err != nil {
		return nil, fmt.Errorf("store_python: %w; name an interpreter that has the wheel mooncake-transfer-engine", err)
	}
	r := &remote{engine: sideproc.New(sideproc.Config{
		Python: python, Cluster: reached, Memory: segment, Environ: os.Environ(), Log: log,
		Holds: func(pid int) (func(), error) { return holdFor(master, pid) },
	})}
	how := mooncake.Replication{Replicas: cfg.Replicas}
	if reached.PreferredSegment != "" {
		how.PreferredSegments = []string{reached.PreferredSegment}
	}
	r.client = mooncake.NewClient(mooncake.ClientOptions{Engine: r.engine, Memory: segment.Bytes(), Replication: how, Lease: cfg.Mooncake.Lease, Log: log})
	asked, put, got := registry.ClusterTimes()
	r.Level = level.New(level.Options{
		Client: r.client, Memory: segment.Bytes(), Lease: cfg.Mooncake.Lease,
		QueueBytes:   min(max(uint64(cfg.StoreBytes)/putQueueShare, minPutQueue), maxPutQueue),
		ResetCluster: cfg.Reset == config.ResetCluster, Asked: asked, PutTook: put, GetTook: got, Log: log,
	})
	log.Info("a Mooncake cluster is below the store", "master", reached.MasterServerAddress, "protocol", reached.Protocol, "lent_bytes", reached.GlobalSegmentBytes,
		"write", cfg.Write, "reset", cfg.Reset, "python", python)
	return r, nil
}

// holdFor has the store know of a side process: whoever adopts the segment after
// this daemon uses no slot while that process may still write to one.
func holdFor(master *embedded.Master, pid int) (release func(), err error) {
	start, err := proc.StartTime(pid)
	if err != nil {
		return nil, err
	}
	session := embedded.Session{Client: rand.Uint64() | 1, Number: 1}
	if err := master.OpenSession(session, uint32(pid), start, embedded.Declaration{}); err != nil {
		return nil, err
	}
	return func() { master.SessionLost(session) }, nil
}

// run keeps the cluster below the store until ctx ends. Its process ends first, so
// that no transfer is waited for.
func (r *remote) run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { _ = r.engine.Run(ctx) }) // it ends with ctx alone
	r.Level.Run(ctx)
	both.Wait()
	r.client.Close()
}

// problem says why the node goes without the cluster, "" while it does not.
func (r *remote) problem() string {
	if why := r.Problem(); why != "" {
		return "the Mooncake cluster is not in service, the node goes on with what it has: " + why
	}
	return ""
}
