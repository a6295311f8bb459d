package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
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
		if at.CAFile == "" && cfg.TLSCertFile != "" {
			if err := trustOwn(secure, cfg.TLSCertFile); err != nil {
				return nil, err
			}
		}
		if at.CertFile == "" && at.KeyFile == "" && cfg.TLSClientCAFile != "" {
			at.CertFile, at.KeyFile = cfg.TLSCertFile, cfg.TLSKeyFile // it asks for one
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

// trustOwn takes the certificate of a file for the other side's, and no other: whoever
// signed it, and whatever address it is for.
func trustOwn(secure *tls.Config, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%w: %w", config.ErrValue, err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%w: no certificate in %s", config.ErrValue, file)
	}
	secure.InsecureSkipVerify = true // what follows is stricter
	secure.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, block.Bytes) {
			return fmt.Errorf("%w: its certificate is not the one in %s", config.ErrValue, file)
		}
		return nil
	}
	return nil
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
