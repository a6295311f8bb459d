package datapath

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

// BenchmarkWarmLoad is a warm load with both daemons in this process, for
// profiles.
func BenchmarkWarmLoad(b *testing.B) {
	benchmark(b, func(e *engine, _ int) (*connector.Result, error) {
		_, r, err := e.load(1)
		return r, err
	})
}

// BenchmarkStore is the store of a new prompt, which evicts an old one.
func BenchmarkStore(b *testing.B) {
	benchmark(b, func(e *engine, i int) (*connector.Result, error) {
		_, r, err := e.store(2 + i)
		return r, err
	})
}

func benchmark(b *testing.B, do func(e *engine, i int) (*connector.Result, error)) {
	for _, g := range geometries[:3] {
		b.Run(g.String(), func(b *testing.B) { benchmarkJob(b, g, do) })
	}
}

func benchmarkJob(b *testing.B, g geometry, do func(e *engine, i int) (*connector.Result, error)) {
	dir, err := os.MkdirTemp("", "datapath-") // b.TempDir is too long for a socket's path
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	b.Cleanup(func() {
		stop()
		running.Wait()
	})
	log := slog.New(slog.DiscardHandler)
	lookupd := &config.LookupdConfig{Common: config.Common{RuntimeDir: dir}, StoreBytes: 64 << 20}
	worker := &config.WorkerConfig{Common: config.Common{RuntimeDir: dir}}
	lookupd.SetDefaults(os.DirFS("/"))
	worker.SetDefaults()
	running.Go(func() {
		if err := daemon.RunLookupd(ctx, lookupd, daemon.Control{}, log); err != nil {
			b.Error(err)
		}
	})
	running.Go(func() {
		if err := daemon.RunWorker(ctx, worker, daemon.Control{}, log); err != nil {
			b.Error(err)
		}
	})
	e, err := readyEngine(ctx, dir, g, true)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.close)
	e.fill(1)
	if _, _, err := e.store(1); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(g.bytes()))
	var ask, move, all int64
	n := 0
	for ; b.Loop(); n++ {
		r, err := do(e, n)
		if err != nil {
			b.Fatal(err)
		}
		ask, move, all = ask+r.AskMicros, move+r.MoveMicros, all+r.Micros
	}
	b.ReportMetric(float64(ask)/float64(n), "ask-us/op")
	b.ReportMetric(float64(move)/float64(n), "move-us/op")
	b.ReportMetric(float64(all-ask-move)/float64(n), "rest-us/op")
}
