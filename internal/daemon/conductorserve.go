package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/router"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// maxKeyBytes bounds a file with an engine's key.
const maxKeyBytes = 4 << 10

// routing is the router with what it knows of engines.
type routing struct {
	router *router.Router
	fleet  *fleet.Fleet
	// polls and requests to engines have connections of their own.
	polls, requests *http.Transport
	stores          *nodeStores
}

// newRouting puts a router on top of an index.
func newRouting(cfg *config.ConductorConfig, engines []config.Engine, index router.Index, log *slog.Logger) (*routing, error) {
	if len(engines) == 0 {
		return nil, fmt.Errorf("%w: serve sends requests to engines: say which with engines", config.ErrValue)
	}
	key, err := engineKey(cfg)
	if err != nil {
		return nil, err
	}
	watched, dirs := make([]fleet.Engine, len(engines)), map[string]string{}
	for i, e := range engines {
		watched[i] = fleet.Engine{Name: e.Name, URL: e.URL, Role: fleet.Role(e.Role), Ranks: e.Ranks, APIKey: key}
		if e.Store != "" {
			dirs[e.Name] = e.Store
		}
	}
	r := &routing{polls: engineTransport(), requests: router.NewTransport(), stores: newNodeStores(dirs)}
	if r.fleet, err = fleet.New(watched, fleet.DefaultOptions(), r.polls, log); err != nil {
		return nil, fmt.Errorf("engines: %w: %w", config.ErrValue, err)
	}
	rules := routerConfig(cfg)
	if r.router, err = router.New(rules, index, r.fleet, r.stores, r.requests, log); err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrValue, err)
	}
	return r, nil
}

// engineKey reads the key that engines ask for, "" for none.
func engineKey(cfg *config.ConductorConfig) (string, error) {
	if cfg.EngineKeyFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(cfg.EngineKeyFile)
	if err != nil {
		return "", fmt.Errorf("engine_key_file: %w: %w", config.ErrValue, err)
	}
	key := strings.TrimSpace(string(text))
	if len(key) > maxKeyBytes || strings.ContainsAny(key, "\r\n") {
		return "", fmt.Errorf("engine_key_file: %w: %s has more than a key in it", config.ErrValue, cfg.EngineKeyFile)
	}
	return key, nil
}

// minCopyTokens is the shortest prefix that is worth a copy.
const minCopyTokens = 1024

// routerConfig is the router's part of the configuration.
func routerConfig(cfg *config.ConductorConfig) router.Config {
	rules := router.Config{
		Policy: scheduler.Strategy(cfg.Policy), Pooled: cfg.Pooled, TTFT: cfg.TTFT, TBT: cfg.TBT, TokenizeTimeout: cfg.TokenizeTimeout,
		SendTokens: cfg.SendTokens, SendPriority: cfg.SendPriority, MaxBodyBytes: int64(cfg.MaxBodyBytes), //nolint:gosec // a gibibyte at most
		MaxInFlight: cfg.MaxInFlight, MaxWaiting: cfg.MaxWaiting, Attempts: cfg.Attempts, FirstByteTimeout: cfg.FirstByteTimeout,
	}
	if cfg.CopyAfter > 0 {
		rules.Replication = scheduler.ReplicationOptions{Uses: float64(cfg.CopyAfter), HalfLife: time.Minute, MinBlocks: minCopyTokens}
	}
	rules.SetDefaults()
	rules.Scheduler.Admission = scheduler.Admission(cfg.Admission)
	return rules
}

// run watches engines and does what is done beside requests, until ctx ends.
func (r *routing) run(ctx context.Context, fail func(error)) {
	var both sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{"engines": r.fleet.Run, "router": r.router.Run} {
		both.Go(func() {
			if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	both.Wait()
	r.polls.CloseIdleConnections()
	r.requests.CloseIdleConnections()
	r.stores.close()
}

// problem says that no engine can be sent to, "" when one can.
func (r *routing) problem() string {
	if r.fleet.Usable() == 0 {
		return fmt.Sprintf("none of %d engines answers", r.fleet.Len())
	}
	return ""
}
