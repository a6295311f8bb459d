package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/mooncakec"
	"github.com/mooncake-sidecar/sidecar/internal/proc"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

// way is how a cluster is reached: Mooncake's client in a process beside the daemon,
// or from its library in the daemon.
type way interface {
	mooncake.Engine
	// Run keeps the client set up until ctx ends. With mooncakec.ErrLeft the memory may
	// be touched until this process ends.
	Run(ctx context.Context) error
	// Changed is closed when Health changes.
	Changed() <-chan struct{}
}

var (
	_ way = (*sideproc.Engine)(nil)
	_ way = (*mooncakec.Engine)(nil)
)

// newWay returns the way that the settings ask for. master, if there is one, is told
// which processes may touch the memory. retry: a client that could not be set up is
// not given up.
func newWay(m *config.Mooncake, to *cluster.Config, memory *shm.Segment, master *embedded.Master, retry bool, log *slog.Logger) (way, error) {
	hold := func(pid int) (func(), error) { return holdFor(master, pid) }
	if master == nil {
		hold = func(int) (func(), error) { return func() {}, nil }
	}
	if m.Library != "" {
		// Its threads are this process's: until that is dead.
		if _, err := hold(os.Getpid()); err != nil {
			return nil, fmt.Errorf("mooncake_library: %w", err)
		}
		limits := mooncakec.Limits{}
		if !retry {
			limits.FirstPause = clusterTimeout
		}
		return mooncakec.New(mooncakec.Config{Library: m.Library, Cluster: *to, Memory: memory.Bytes(), Limits: limits, Log: log}), nil
	}
	python, err := exec.LookPath(m.StorePython)
	if err == nil {
		python, err = filepath.Abs(python) // the process begins elsewhere
	}
	if err != nil {
		return nil, fmt.Errorf("store_python: %w; name an interpreter that has the wheel mooncake-transfer-engine", err)
	}
	limits := sideproc.Limits{}
	if !retry {
		limits.FirstPause = clusterTimeout
	}
	return sideproc.New(sideproc.Config{Python: python, Cluster: *to, Memory: memory, Environ: os.Environ(), Limits: limits, Holds: hold, Log: log}), nil
}

// holdFor has the store know of a process that Mooncake's client runs in: whoever
// adopts the segment after this daemon uses no slot while that process may still
// write to one.
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
