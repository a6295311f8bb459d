package daemon

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/cudadev"
	"github.com/mooncake-sidecar/sidecar/internal/faults"
	"github.com/mooncake-sidecar/sidecar/internal/hostdev"
	"github.com/mooncake-sidecar/sidecar/internal/metrics"
	"github.com/mooncake-sidecar/sidecar/internal/proc"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unary"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/internal/version"
	"github.com/mooncake-sidecar/sidecar/store/embedded/client"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// ErrNoDevice: this build has no device of that kind.
var ErrNoDevice = errors.New("device is not available")

// RunWorker is mooncake-worker. It returns nil when ctx ends or after the linger
// time, and ErrAlreadyRunning when the device has a worker in the runtime
// directory. The store need not be there.
func RunWorker(ctx context.Context, cfg *config.WorkerConfig, control Control, log *slog.Logger) (err error) {
	if kind := cfg.DeviceKind(); kind != kindHost && kind != kindCUDA {
		return fmt.Errorf("%w: %s; this build knows %s and %s", ErrNoDevice, cfg.Device, kindHost, kindCUDA)
	}
	sup := supervise(log)
	dir, err := runtimeDir(cfg.RuntimeDir)
	if err != nil {
		return err
	}
	sessions, err := listenSessions(dir, config.WorkerSocket(cfg.Device), &cfg.Common, sup)
	if err != nil {
		return err
	}
	defer func() { _ = sessions.Close() }() // the end of ctx has closed it, unless that was never reached
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	end := lastResort(log)
	defer end.Stop()
	sup.settled(log)
	context.AfterFunc(ctx, func() { sup.Stopping("") })
	ops, err := operate(ctx, "mooncake-worker", dir, config.WorkerSocket(cfg.Device), &cfg.Common, &cfg.HTTP, &control, sup, stop, log)
	if err != nil {
		return err
	}
	defer ops.close() //nolint:contextcheck // ctx is over by then

	placeWorker(cfg, log)
	background := &proc.Background{Refused: func(err error) {
		log.Warn("stores run at the priority of everything else: it can't be lowered here", "error", err)
	}}
	cores := runtime.GOMAXPROCS(0) // background work will add to these
	pool := cudadev.NewPool()
	//nolint:contextcheck // the store's client outlives ctx: the sessions give back through it what they hold
	chunks, closeStore, err := connectStore(storeEdge{dir, pool}, background.Run, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	injected, err := faults.Worker(os.Getenv)
	if err != nil {
		return err
	}
	if injected != (worker.Faults{}) {
		log.Warn("this worker misbehaves on purpose", "faults", fmt.Sprintf("%+v", injected))
	}
	idle := newLinger(lingerTime(&cfg.Common), func() { stop(errIdle) })
	defer idle.stop()
	loadTimes, storeTimes := ops.registry.JobTimes()
	device := nearDevice{root: os.DirFS("/"), chunks: chunks, log: log}
	if cfg.DeviceKind() == kindCUDA {
		lost := func(err error) {
			end.Reset(lossPatience)
			stop(err)
		}
		gpu := cudaDevice(pool, background.Run, cores, lost, log)
		defer gpu.Close() // the sessions have ended by then
		ops.registry.AddGPU(func() metrics.GPU { return gpuFigures(gpu) })
		device.Device = gpu
	} else {
		device.Device = hostdev.Device{Background: background.Run, Cores: cores}
	}
	server, err := worker.New(worker.Config{
		Store:         chunks,
		StoreReady:    chunks.Ready,
		Devices:       map[string]worker.Device{cfg.DeviceKind(): device},
		MapBoard:      mapBoard,
		KeptSegments:  keptBy(chunks),
		OnSessions:    idle.sessions,
		Pulse:         sup.pulse,
		LoadTimes:     worker.JobTimes{Took: loadTimes.Took, Ask: loadTimes.Ask, Move: loadTimes.Move, Wait: loadTimes.Wait},
		StoreTimes:    worker.JobTimes{Took: storeTimes.Took, Ask: storeTimes.Ask, Move: storeTimes.Move, Wait: storeTimes.Wait},
		Log:           log,
		Version:       version.Version,
		PID:           os.Getpid(),
		Autostarted:   cfg.Autostarted,
		Verify:        cfg.Verify,
		LoadPipelines: cfg.LoadWorkers,
		QueueJobs:     cfg.QueueJobs,
		StorePace:     cfg.StorePace,
		BatchBytes:    int(cfg.BatchBytes),
		Faults:        injected,
	})
	if err != nil {
		return err
	}
	defer server.Close()
	limitMemory()
	ops.watchStoreClient(chunks.Ready, dir)
	ops.registry.AddWorker(server.Stats, chunks.Ready)
	closeOnEnd := context.AfterFunc(ctx, func() { _ = sessions.Close() }) // Serve reports it
	defer closeOnEnd()
	log.Info("mooncake-worker is ready", "runtime_dir", dir, "device", cfg.Device, "version", version.Version, "pid", os.Getpid(),
		"load_workers", cfg.LoadWorkers, "queue_jobs", cfg.QueueJobs, "batch_bytes", cfg.BatchBytes.String(), "store_pace", cfg.StorePace,
		"autostarted", cfg.Autostarted, "linger", cfg.Linger)
	ops.serving(ctx)
	sup.Ready("device " + cfg.Device)
	err = server.Serve(workerSessions(sup.accept(sessions, server.Tick)))
	return endOf(ctx, err, log)
}

func mapBoard(fd, slots int) (worker.Board, error) {
	board, err := shm.MapJobBoard(fd, slots)
	if err != nil {
		return nil, err
	}
	return board, nil
}

// keptBy offers the segment that the store client has mapped to a new lookupd.
func keptBy(chunks *client.Client) func(func([]connector.SegmentInfo, []int) error) error {
	return func(send func([]connector.SegmentInfo, []int) error) error {
		info, fd, ok := chunks.Kept()
		if !ok {
			return send(nil, nil)
		}
		return send([]connector.SegmentInfo{info}, []int{fd})
	}
}

// connectStore starts the store's client. close ends it; no call may be under
// way then.
func connectStore(edge storeEdge, background func(work func()), log *slog.Logger) (chunks *client.Client, closeStore func() error, err error) {
	path := filepath.Join(edge.dir, config.CallsSocket)
	rpc := unary.NewClient(func(ctx context.Context) (net.Conn, error) { return dialOwn(ctx, path) }, maxMessageBytes)
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	chunks = client.New(client.Config{
		Edge: edge, RPC: rpc, ID: binary.NativeEndian.Uint64(id[:]) | 1, PID: os.Getpid(), Version: version.Version, Log: log,
		Background: background,
	})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = chunks.Run(ctx) }) // it ends with ctx only
	return chunks, func() error {
		stop()
		running.Wait()
		return errors.Join(chunks.Close(), rpc.Close())
	}, nil
}

// storeEdge is what the store's client needs of the operating system.
type storeEdge struct {
	dir  string
	pool *cudadev.Pool // is told of the segments, if not nil
}

// Dial implements client.Edge.
func (e storeEdge) Dial(ctx context.Context) (client.Conn, error) {
	conn, err := unixmsg.Dial(ctx, filepath.Join(e.dir, config.LookupdSocket), nil)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// Map implements client.Edge.
func (e storeEdge) Map(fd int, bytes uint64) (client.Mapping, error) {
	segment, err := shm.OpenSegment(fd, bytes)
	if err != nil {
		return nil, err
	}
	if e.pool == nil {
		return segment, nil
	}
	return pooled(segment, e.pool), nil
}

// CloseFD implements client.Edge.
func (e storeEdge) CloseFD(fd int) {
	_ = syscall.Close(fd) // Linux frees the number whatever it says
}
