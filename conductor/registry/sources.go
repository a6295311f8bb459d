package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Limits on an engine's answer.
const (
	maxSourcesBytes = 1 << 20
	maxSources      = 4096
)

// ErrNoEvents: the engine publishes none.
var ErrNoEvents = errors.New("the engine publishes no KV events")

// source is what vLLM says of one rank's publisher.
type source struct {
	Enabled        *bool   `json:"enable_kv_cache_events"`
	Publisher      string  `json:"publisher"`
	Endpoint       string  `json:"endpoint"`
	ReplayEndpoint *string `json:"replay_endpoint"`
	Topic          string  `json:"topic"`
}

// Sources asks an engine's API server (http://HOST:PORT) where its ranks publish, and
// returns a service for each: like is what they have in common. An empty model is asked
// for, too.
func Sources(ctx context.Context, client *http.Client, base string, like *contract.Service) ([]contract.Service, error) {
	at, err := url.Parse(base)
	if err != nil || at.Hostname() == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fault("url", "invalid_value", "%q is no http://HOST:PORT", base)
	}
	var ranks map[string]source
	if err := get(ctx, client, at.JoinPath("kv_event_sources"), &ranks); err != nil {
		return nil, err
	}
	if like.Model == "" {
		named := *like
		if named.Model, err = modelOf(ctx, client, at); err != nil {
			return nil, err
		}
		like = &named
	}
	return services(ranks, at.Hostname(), like)
}

// services makes services of an engine's answer, in the order of their ranks.
func services(ranks map[string]source, host string, like *contract.Service) ([]contract.Service, error) {
	if len(ranks) > maxSources {
		return nil, fmt.Errorf("registry: %d sources of KV events, at most %d", len(ranks), maxSources)
	}
	var made []contract.Service
	for name, of := range ranks {
		rank, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("registry: a source of KV events of rank %q", name)
		}
		if of.Enabled != nil && !*of.Enabled || of.Publisher == "null" || of.Endpoint == "" {
			continue
		}
		s := *like
		s.Rank, s.Endpoint, s.Topic = rank, reachable(of.Endpoint, host), of.Topic
		if of.ReplayEndpoint != nil {
			s.ReplayEndpoint = reachable(*of.ReplayEndpoint, host)
		}
		if s.Type == "" {
			s.Type = contract.TypeVLLM
		}
		if err := Prepare(&s); err != nil {
			return nil, fmt.Errorf("registry: rank %d: %w", rank, err)
		}
		made = append(made, s)
	}
	if len(made) == 0 {
		return nil, fmt.Errorf("registry: %w: it needs --kv-events-config", ErrNoEvents)
	}
	slices.SortFunc(made, func(a, b contract.Service) int { return a.Rank - b.Rank })
	return made, nil
}

// reachable makes of where a publisher binds where to connect to: every address of the
// engine's machine is the one at which the engine was asked.
func reachable(endpoint, host string) string {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return endpoint
	}
	switch rest[:i] {
	case "*", "0.0.0.0", "[::]", "::", "":
		return "tcp://" + net.JoinHostPort(host, rest[i+1:])
	}
	return endpoint
}

// modelOf asks an engine for the name of its model, the first of those that it serves.
func modelOf(ctx context.Context, client *http.Client, at *url.URL) (string, error) {
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := get(ctx, client, at.JoinPath("v1", "models"), &models); err != nil {
		return "", err
	}
	if len(models.Data) == 0 {
		return "", errors.New("registry: the engine names no model")
	}
	return models.Data[0].ID, nil
}

// get reads a JSON document of an engine.
func get(ctx context.Context, client *http.Client, from *url.URL, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("registry: ask an engine: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("registry: %s answers %s", from, answer.Status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxSourcesBytes+1))
	if err != nil {
		return fmt.Errorf("registry: %s: %w", from, err)
	}
	if len(body) > maxSourcesBytes {
		return fmt.Errorf("registry: %s answers with more than %d bytes", from, maxSourcesBytes)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("registry: %s: %w", from, err)
	}
	return nil
}
