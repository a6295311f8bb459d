package daemon

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/doctor"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

const (
	// reachTimeout bounds the try of a connection, clusterTimeout that of the whole way
	// to the cluster.
	reachTimeout   = 3 * time.Second
	clusterTimeout = 20 * time.Second
	// probeMemory is registered for the try.
	probeMemory = 1 << 20
)

// ProbeCluster tries the way to a Mooncake cluster, as lookupd would go it, but
// lends nothing.
func ProbeCluster(ctx context.Context, m *config.Mooncake) doctor.Cluster {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	file := m.ConfigPath
	if file == "" {
		file = os.Getenv(cluster.EnvPath)
	}
	reached, notes, err := clusterConfig(m)
	found := doctor.Cluster{
		File: file, ConfigErr: err, Notes: notes, Master: reached.MasterServerAddress, Metadata: reached.MetadataServer, Protocol: reached.Protocol,
		Python: m.StorePython, LentBytes: reached.GlobalSegmentBytes,
	}
	if err != nil {
		return found
	}
	if !strings.Contains(reached.MasterServerAddress, "://") {
		found.MasterErr = dial(ctx, reached.MasterServerAddress)
	}
	if strings.HasPrefix(reached.MetadataServer, "http") {
		found.MetadataErr = getPage(ctx, reached.MetadataServer)
	}
	if found.MasterErr != nil || found.MetadataErr != nil {
		return found // the side process would find that, too, and take longer
	}
	health := tryObject(ctx, m.StorePython, &reached)
	found.Ready, found.Reason, found.Note, found.Versions = health.Ready, health.Reason, health.Note, health.Versions
	return found
}

func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: reachTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// getPage tells whether a server answers; what it answers is the side process's
// affair.
func getPage(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"?key=mooncake-sidecar", http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// tryObject starts a side process, which puts, gets and compares an object.
func tryObject(ctx context.Context, python string, to *cluster.Config) mooncake.Health {
	path, err := exec.LookPath(python)
	if err != nil {
		return mooncake.Health{Reason: "store_python: " + err.Error()}
	}
	memory, err := shm.NewSegment("mooncake-probe", probeMemory)
	if err != nil {
		return mooncake.Health{Reason: err.Error()}
	}
	defer func() { _ = memory.Close() }() // nothing was kept in it
	lender := *to
	lender.Mode, lender.GlobalSegmentBytes = cluster.ModeStandalone, 0
	engine := sideproc.New(sideproc.Config{
		Python: path, Cluster: lender, Memory: memory, Environ: os.Environ(), Log: slog.New(slog.DiscardHandler),
		Limits: sideproc.Limits{FirstPause: clusterTimeout}, // one try
	})
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	begun := engine.Changed()
	go func() {
		defer close(ended)
		_ = engine.Run(running) // it ends with its context
	}()
	select {
	case <-begun:
	case <-ctx.Done():
	}
	health := engine.Health()
	stop()
	<-ended
	return health
}
