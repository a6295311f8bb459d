package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/conductor/registry"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

const (
	// engineTimeout bounds a question to an engine's server.
	engineTimeout = 5 * time.Second
	// findInterval is between two questions to an engine whose streams are not known yet,
	// and checkInterval to one whose are: it may be restarted with other ports.
	findInterval  = time.Second
	checkInterval = 10 * time.Second
)

// engineTransport is for questions to engines: short, and few at a time.
func engineTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: engineTimeout}
	return &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, ResponseHeaderTimeout: engineTimeout}
}

// follower keeps the streams of engines registered as their servers tell of them.
type follower struct {
	engines []config.Engine
	index   conductorIndex
	client  *http.Client
	log     *slog.Logger
}

func newFollower(engines []config.Engine, index conductorIndex, client *http.Client, log *slog.Logger) *follower {
	return &follower{engines, index, client, log}
}

// run asks until ctx ends.
func (f *follower) run(ctx context.Context) {
	var asking sync.WaitGroup
	for _, e := range f.engines {
		asking.Go(func() { f.one(ctx, e) })
	}
	asking.Wait()
}

// one follows an engine.
func (f *follower) one(ctx context.Context, e config.Engine) {
	known := f.restored(e)
	said := ""
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wish := contract.Service{Instance: e.Name, Tenant: prefixindex.DefaultTenant}
		found, err := registry.Sources(ctx, f.client, e.URL, &wish)
		if err == nil {
			known, err = f.change(ctx, known, found)
		}
		// What is known of an engine that does not answer stays: it may be busy.
		if text := textOf(err); text != said && ctx.Err() == nil {
			if said = text; err != nil {
				f.log.Warn("an engine's streams of KV events can't be followed as it tells of them", "engine", e.Name, "url", e.URL, "error", err)
			} else {
				f.log.Info("an engine's streams of KV events are followed", "engine", e.Name, "streams", len(known))
			}
		}
		if err != nil || len(known) == 0 {
			timer.Reset(findInterval)
		} else {
			timer.Reset(checkInterval)
		}
	}
}

// restored are the streams that a snapshot had of those that the engine told of: it may have
// moved since.
func (f *follower) restored(e config.Engine) (known []contract.Service) {
	for _, s := range f.index.Services() {
		if s.Ways&contract.Found != 0 && s.Instance == e.Name {
			known = append(known, s.Service)
		}
	}
	return known
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// change registers what was found and unregisters what is not there any more. It returns
// what is registered of it.
func (f *follower) change(ctx context.Context, known, found []contract.Service) (now []contract.Service, err error) {
	for _, s := range known {
		if slices.Contains(found, s) {
			now = append(now, s)
		} else if gone := f.index.Unregister(ctx, s.Key()); gone != nil && !errors.Is(gone, contract.ErrNotFound) {
			err = errors.Join(err, gone)
		}
	}
	for _, s := range found {
		// Also what is known: somebody may have unregistered it.
		made, fault := f.index.RegisterAs(ctx, contract.Found, s)
		if fault != nil {
			err = errors.Join(err, fault)
			continue
		}
		if !slices.Contains(now, s) {
			now = append(now, s)
			for _, warning := range made.Warnings {
				f.log.Warn(warning, "engine", s.Instance)
			}
		}
	}
	return now, err
}
