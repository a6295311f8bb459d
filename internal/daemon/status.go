package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// ErrNotRunning: no daemon answers.
var ErrNotRunning = errors.New("not running")

// statusTimeout bounds all questions together.
const statusTimeout = 2 * time.Second

// Status is what a daemon says of itself.
type Status struct {
	Daemon      string `json:"daemon"`
	Version     string `json:"version"`
	PID         int    `json:"pid"`
	Socket      string `json:"socket"`
	Autostarted bool   `json:"autostarted"`
	// StoreReady: the daemon has its store.
	StoreReady bool `json:"store_ready"`
	// Store is the store's own account (mooncake-lookupd).
	Store *StoreStatus `json:"store,omitempty"`
	// Conductor is the index's own account (mooncake-conductor).
	Conductor *api.Stats `json:"conductor,omitempty"`
}

// StoreStatus is the embedded store's account.
type StoreStatus struct {
	Chunks        uint64 `json:"chunks"`
	Namespaces    uint64 `json:"namespaces"`
	CapacityBytes uint64 `json:"capacity_bytes"`
	LeasedBytes   uint64 `json:"leased_bytes"`
	OpenReads     uint64 `json:"open_reads"`
	OpenPuts      uint64 `json:"open_puts"`
	Clients       uint64 `json:"clients"`
	// UndeclaredClients keep a recovered store from handing out memory.
	UndeclaredClients uint64            `json:"undeclared_clients"`
	Counters          map[string]uint64 `json:"counters"`
}

// LookupdStatus asks the lookupd of a runtime directory, empty for the default.
func LookupdStatus(ctx context.Context, dir string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	dir = existingDir(dir)
	status, err := probe(ctx, filepath.Join(dir, config.LookupdSocket))
	if err != nil {
		return nil, err
	}
	rpc, err := dialStore(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rpc.Close() }() // nothing is under way
	s, err := storepb.NewStoreClient(rpc).Stats(ctx, &storepb.StatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("store service: %w", err)
	}
	status.Store = &StoreStatus{
		Chunks: s.GetChunks(), Namespaces: s.GetNamespaces(), CapacityBytes: s.GetCapacityBytes(), LeasedBytes: s.GetLeasedBytes(),
		OpenReads: s.GetOpenReads(), OpenPuts: s.GetOpenPuts(), Clients: s.GetClients(), UndeclaredClients: s.GetUndeclaredClients(),
		Counters: s.GetCounters(),
	}
	return status, nil
}

// WorkerStatus asks the worker of a device.
func WorkerStatus(ctx context.Context, dir, device string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return probe(ctx, filepath.Join(existingDir(dir), config.WorkerSocket(device)))
}

func existingDir(configured string) string {
	if configured != "" {
		return configured
	}
	return config.DefaultRuntimeDir(nil, syscall.Geteuid())
}

// probe asks the daemon behind a session socket.
func probe(ctx context.Context, path string) (*Status, error) {
	conn, err := unixmsg.Dial(ctx, path, nil)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%w: nobody serves %s", ErrNotRunning, path)
		}
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the session is over
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	frames := connector.NewFrameReader(conn)
	welcome, err := greet(conn, frames, connector.RoleProbe)
	if err == nil {
		err = say(conn, &connector.Ping{Type: connector.TypePing, Seq: 1})
	}
	var pong *connector.Pong
	if err == nil {
		pong, err = connector.Receive[connector.Pong](frames)
	}
	if err != nil {
		return nil, fmt.Errorf("%s does not answer: %w", path, err)
	}
	return &Status{
		Daemon: welcome.Daemon, Version: welcome.Version, PID: welcome.PID, Socket: path,
		Autostarted: welcome.Autostarted, StoreReady: pong.StoreReady,
	}, nil
}

// dialStore makes the connection to the store's gRPC service, which connects
// when it is used and again soon after lookupd was restarted.
func dialStore(dir string) (*grpc.ClientConn, error) {
	path := filepath.Join(dir, config.StoreSocket)
	rpc, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(dialOwn),
		grpc.WithInitialWindowSize(callWindowBytes), grpc.WithInitialConnWindowSize(callWindowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("store service %s: %w", path, err)
	}
	return rpc, nil
}
