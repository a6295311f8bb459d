package cudadev

import (
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
)

//go:embed copy.ptx
var kernelText string

const kernelName = "mooncake_copy"

// maxLanes is how many batches use the GPU at a time: what worker has under way,
// and a little more.
const maxLanes = 4

// gpu is a context while engines are there.
type gpu struct {
	*cuda.Context
	cfg        *Config
	stats      *counters
	name       string
	version    string
	uuid       cuda.UUID
	processors int
	kernel     cuda.Kernel
	pool       *Pool

	allocations allocations
	stop        chan struct{} // ends pinning
	pinning     sync.WaitGroup

	lanes    chan *lane // those that nobody uses
	making   sync.Mutex
	laneless int // how many lanes may still be made; guarded by making

	failure atomic.Pointer[error] // set once, and once more when a doubt is none any more
}

func openGPU(cfg *Config, stats *counters, driver *cuda.Driver, device cuda.Device, pool *Pool) (*gpu, error) {
	context, err := driver.Retain(device)
	if err != nil {
		return nil, err
	}
	g := &gpu{
		Context: context, cfg: cfg, stats: stats, name: device.Name, version: driver.Version(), uuid: device.UUID, processors: device.Processors,
		pool: pool, stop: make(chan struct{}), lanes: make(chan *lane, maxLanes), laneless: maxLanes,
	}
	g.allocations.gpu = g
	if g.kernel, err = context.Load(kernelText, kernelName); err != nil {
		return nil, errors.Join(fmt.Errorf("load the copy kernel: %w", err), context.Release())
	}
	g.pinning.Go(func() { cfg.Background(func() { pool.pin(g, g.stop) }) })
	return g, nil
}

// close gives everything back.
//
// REQUIRES: nothing is mapped, and no batch is under way.
func (g *gpu) close() error {
	close(g.stop)
	g.pinning.Wait()
	var errs []error
	for range maxLanes - g.laneless {
		errs = append(errs, (<-g.lanes).close())
	}
	errs = append(errs, g.Unload(g.kernel), g.Release())
	if g.failure.Load() != nil {
		return nil // a lost context answers everything with its error
	}
	return errors.Join(errs...)
}

// lost returns why the context is of no use any more, nil if it is.
func (g *gpu) lost() error {
	if err := g.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// dead reports whether the context is lost in a way that ended all that it did.
func (g *gpu) dead() bool { return cuda.Lost(g.lost()) }

// note returns err, and remembers it if it is the end of the context.
func (g *gpu) note(err error) error {
	if err == nil || !cuda.Lost(err) {
		return err
	}
	return g.fail(fmt.Errorf("%w: %w", ErrLost, err))
}

// unsure says that nobody can tell what the GPU does.
func (g *gpu) unsure(err error) {
	_ = g.fail(fmt.Errorf("%w: nobody can tell whether it still copies: %w", ErrLost, err))
}

// fail remembers why the context is of no use any more, and returns what is
// remembered: the first failure, but a doubt only until the end is certain. Only the
// first is told.
func (g *gpu) fail(err error) error {
	for {
		before := g.failure.Load()
		if before != nil && (cuda.Lost(*before) || !cuda.Lost(err)) {
			return *before
		}
		if !g.failure.CompareAndSwap(before, &err) {
			continue
		}
		if before == nil {
			g.stats.lost.Store(true)
			g.cfg.Log.Error("the GPU can't be used by this process any more; it must be started anew", "error", err)
			if g.cfg.OnLost != nil {
				g.cfg.OnLost(err)
			}
		}
		return err
	}
}

// register makes a step of the store's memory reachable.
func (g *gpu) register(memory []byte) (cuda.Host, error) {
	if err := g.lost(); err != nil {
		return cuda.Host{}, err
	}
	host, err := g.Register(memory)
	if err != nil {
		return cuda.Host{}, g.note(err)
	}
	g.stats.registered.Add(int64(len(memory)))
	return host, nil
}

func (g *gpu) unregister(host cuda.Host, bytes uint64) {
	g.stats.registered.Add(-int64(bytes))
	if err := g.Unregister(host); err != nil && g.lost() == nil {
		g.cfg.Log.Warn("give the store's memory back to the driver", "error", err)
	}
}

// pinFailed says that bytes will be copied slowly.
func (g *gpu) pinFailed(bytes uint64, err error) {
	g.stats.unregistered.Add(int64(bytes))
	g.cfg.Log.Warn("the driver does not take the store's memory: copies of that part go by way of a buffer, at a fraction of the speed. "+
		"Is there a limit on locked memory (ulimit -l, the container's), or too little memory?", "bytes", bytes, "error", err)
}

// lane returns a lane for one batch; give returns it.
func (g *gpu) lane() (*lane, error) {
	select {
	case l := <-g.lanes:
		return l, nil
	default:
	}
	g.making.Lock()
	if g.laneless == 0 {
		g.making.Unlock()
		return <-g.lanes, nil
	}
	defer g.making.Unlock()
	l, err := newLane(g)
	if err != nil {
		return nil, g.note(err)
	}
	g.laneless--
	return l, nil
}

func (g *gpu) give(l *lane) { g.lanes <- l }
