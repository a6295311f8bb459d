package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// conductorPatience bounds a command's question to a conductor.
const conductorPatience = 30 * time.Second

// ConductorAt says which conductor a command asks, and as whom.
type ConductorAt struct {
	// URL is its address; empty is the one that the configuration's own conductor has.
	URL string
	// CAFile has the authority of its certificate; empty is the machine's. CertFile and
	// KeyFile are shown to one that asks for them.
	CAFile, CertFile, KeyFile string
}

// NewConductorClient returns a client of a conductor. The first of the configuration's
// tokens is shown.
func NewConductorClient(cfg *config.ConductorConfig, at ConductorAt) (*api.Client, error) {
	client := &api.Client{Base: at.URL, HTTP: &http.Client{Timeout: conductorPatience}}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if client.Base == "" {
		var err error
		if client.Base, err = ownAddress(cfg); err != nil {
			return nil, err
		}
		if at.CAFile == "" {
			at.CAFile = cfg.TLSCertFile // of our own machine: this very one
		}
	}
	if cfg.TokenFile != "" {
		tokens, err := api.ReadTokens(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", config.ErrValue, err)
		}
		client.Token = tokens[0]
	}
	if at.CAFile != "" {
		text, err := os.ReadFile(at.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", config.ErrValue, err)
		}
		if secure.RootCAs = x509.NewCertPool(); !secure.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%w: no certificate in %s", config.ErrValue, at.CAFile)
		}
	}
	if at.CertFile != "" || at.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(at.CertFile, at.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", config.ErrValue, err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	client.HTTP.Transport = &http.Transport{TLSClientConfig: secure, ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment}
	return client, nil
}

// ownAddress is where the configuration's own conductor is reached from its machine.
func ownAddress(cfg *config.ConductorConfig) (string, error) {
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return "", fmt.Errorf("listen: %w: %w", config.ErrValue, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if cfg.TLSCertFile != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// ConductorStatus asks the configuration's own conductor.
func ConductorStatus(ctx context.Context, cfg *config.ConductorConfig) (*Status, error) {
	client, err := NewConductorClient(cfg, ConductorAt{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	stats, err := client.Stats(ctx)
	if err != nil {
		if errors.Is(err, api.ErrUnreachable) {
			return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
		}
		return nil, err
	}
	return &Status{Daemon: conductorName, Version: stats.Version, Socket: client.Base, StoreReady: stats.Ready, Conductor: &stats}, nil
}
