package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/indexer"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// RunConductor is mooncake-conductor: the index of who holds which prefix, and with
// serve a router on top of it. It returns nil when ctx ends, and ErrAlreadyRunning when
// its address is taken.
func RunConductor(ctx context.Context, cfg *config.ConductorConfig, serve bool, control Control, log *slog.Logger) error {
	return runConductor(ctx, cfg, serve, control, openIndex, log)
}

// socketsPerStream is what a stream takes of libzmq's at most: a replay, and those that are being closed.
const socketsPerStream = 4

// openIndex makes the index, which begins with a snapshot where there is one. What is
// returned beside it closes what it works with, once it has run.
func openIndex(ctx context.Context, cfg *config.ConductorConfig, static []contract.Service, sup *supervision, log *slog.Logger) (conductorIndex, func() error, error) {
	if cfg.SnapshotDir != "" {
		if err := os.MkdirAll(cfg.SnapshotDir, 0o700); err != nil {
			return nil, nil, fmt.Errorf("snapshot_dir: %w", err)
		}
	}
	peers, err := cfg.PeerAddresses()
	if err != nil {
		return nil, nil, err
	}
	engines, err := config.ParseEngines(cfg.Engines)
	if err != nil {
		return nil, nil, err
	}
	expected := indexer.Expected{Static: static}
	for _, e := range engines {
		expected.Engines = append(expected.Engines, e.Name)
	}
	seed, hasSeed, err := cfg.SeedNumber()
	if err != nil {
		return nil, nil, err
	}
	client, err := peerClient(cfg)
	if err != nil {
		return nil, nil, err
	}
	transport, err := zmqx.NewWith(zmqx.Options{Pulse: sup.pulse, Interval: sup.interval, Sockets: socketsPerStream * (cfg.MaxServices + 1)})
	if err != nil {
		return nil, nil, err
	}
	sup.Extend(patienceForMemory) // a snapshot may be large
	index := indexer.Open(ctx, &indexer.Options{
		Transport: transport, MaxBytes: int64(cfg.IndexBytes), MaxServices: cfg.MaxServices, Seed: seed, HasSeed: hasSeed, Log: log, //nolint:gosec // less than there is memory
		Keep: indexer.Keeping{Dir: cfg.SnapshotDir, Interval: cfg.SnapshotInterval, Peers: peers, Client: client, Expected: expected},
	})
	return index, func() error {
		index.Close() // also where it never ran
		client.CloseIdleConnections()
		return transport.Close()
	}, nil
}

// bearer shows a token with each request.
type bearer struct {
	token string
	http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.RoundTripper.RoundTrip(r)
}

// noRedirect keeps a token from whom a redirect names.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// CloseIdleConnections is what http.Client looks for.
func (b *bearer) CloseIdleConnections() {
	if inner, ok := b.RoundTripper.(*http.Transport); ok {
		inner.CloseIdleConnections()
	}
}

// peerClient asks other conductors for their snapshots: as one of those whom they let in,
// for they are started with the same files.
func peerClient(cfg *config.ConductorConfig) (*http.Client, error) {
	transport := engineTransport()
	as := &bearer{RoundTripper: transport}
	if cfg.TokenFile != "" {
		tokens, err := api.ReadTokens(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", config.ErrValue, err)
		}
		as.token = tokens[0]
	}
	if cfg.TLSClientCAFile != "" {
		roots, err := authorities(cfg.TLSClientCAFile)
		if err != nil {
			return nil, err
		}
		pair, err := tls.LoadX509KeyPair(cfg.TLSCertFile, cfg.TLSKeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls_cert_file: %w: %w", config.ErrValue, err)
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}}
	}
	client := &http.Client{Transport: as}
	if as.token != "" {
		client.CheckRedirect = noRedirect
	}
	return client, nil
}

// staticServices are the services of a conductor_config.json, and what is wrong with the
// others.
func staticServices(static []config.StaticService) (services []contract.Service, faults []error) {
	for i := range static {
		s := &static[i]
		if s.Fault != nil {
			faults = append(faults, fmt.Errorf("%s: %w", s.Entry, s.Fault))
			continue
		}
		kind, ok := contract.ParseType(s.Type)
		if !ok && s.Type != "" {
			faults = append(faults, fmt.Errorf("%s: type %q; want %s, %s or %s", s.Entry, s.Type, contract.TypeVLLM, contract.TypeSGLang, contract.TypeMooncake))
			continue
		}
		tenant := s.Tenant
		if tenant == "" {
			tenant = prefixindex.DefaultTenant
		}
		services = append(services, contract.Service{
			Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, Topic: s.Topic, Type: kind, Model: s.Model, LoRA: s.LoRA, Tenant: tenant, Instance: s.Instance,
			BlockTokens: s.BlockTokens, Rank: s.Rank, AdditionalSalt: s.AdditionalSalt, Hash: contract.HashProfile{Algorithm: s.Hash.Algorithm, Seed: s.Hash.Seed},
		})
	}
	return services, faults
}

// registerStatic registers them, and says what of the file could not be: the rest is
// served.
func registerStatic(ctx context.Context, services []contract.Service, faults []error, index conductorIndex, log *slog.Logger) error {
	for i := range services {
		made, err := index.RegisterAs(ctx, contract.Configured, services[i])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", services[i].Instance, err))
		}
		for _, warning := range made.Warnings {
			log.Warn(warning, "service", services[i].Key().String())
		}
	}
	for _, fault := range faults {
		log.Error("a service of the contract file is not registered", "error", fault)
	}
	return errors.Join(faults...)
}
