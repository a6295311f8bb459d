package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Model is one that an engine serves.
type Model struct {
	ID string `json:"id"`
	// Parent is the model that this is an adapter of, empty for one that is none.
	Parent string `json:"parent"`
	// MaxTokens of a prompt and what is generated; 0: not told.
	MaxTokens int `json:"max_model_len"`
}

var errPoll = errors.New("poll")

// watch polls an engine until ctx ends.
func (f *Fleet) watch(ctx context.Context, e *engine) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var asked time.Time // for its models
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.kick:
		case <-timer.C:
		}
		if f.poll(ctx, e); ctx.Err() != nil {
			return
		}
		if now := time.Now(); f.wantsModels(e, now.Sub(asked)) {
			asked = now
			f.askModels(ctx, e)
		}
		f.giveUp(e)
		timer.Reset(f.options.PollEvery)
	}
}

// poll asks an engine how it is.
func (f *Fleet) poll(ctx context.Context, e *engine) {
	ctx, cancel := context.WithTimeout(ctx, f.options.PollTimeout)
	defer cancel()
	e.mu.Lock()
	prompts, flights := make([]int, len(e.ranks)), make([]int, len(e.ranks))
	for i := range e.ranks {
		prompts[i], flights[i] = e.ranks[i].prompts, len(e.ranks[i].flights)
	}
	e.mu.Unlock()
	samples, err := f.ask(ctx, e)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counts.Polls++
	if err != nil {
		e.counts.FailedPolls++
	}
	for i := range samples {
		e.ranks[i].learn(&samples[i], f.costs)
		e.ranks[i].corrected(&samples[i], prompts[i], flights[i])
	}
	now := time.Now()
	for i := range e.ranks {
		e.ranks[i].settle(now)
	}
	changed := e.health.polled(err, &f.options, now)
	if errors.Is(err, syscall.ECONNREFUSED) {
		changed = e.health.refused(err, now) || changed
	}
	switch {
	case changed && e.health.up:
		f.arrivals.Add(1)
		f.log.Info("an engine is in use", "engine", e.config.Name)
	case changed:
		e.counts.Outages++
		f.log.Warn("an engine is out", "engine", e.config.Name, "error", err)
	}
}

// ask returns what an engine says of its ranks, nothing if it has no metrics or
// no figures in them.
func (f *Fleet) ask(ctx context.Context, e *engine) ([]sample, error) {
	if _, err := f.get(ctx, e, "/health", maxOtherBytes); err != nil {
		return nil, err
	}
	text, err := f.get(ctx, e, "/metrics", maxMetricsBytes)
	if errors.Is(err, errNotThere) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseMetrics(text, len(e.ranks))
}

// errNotThere: the engine has no such page.
var errNotThere = errors.New("not found")

// maxOtherBytes of what is asked for besides metrics.
const maxOtherBytes = 4 << 20

// get asks an engine for a page of at most so many bytes.
func (f *Fleet) get(ctx context.Context, e *engine, path string, limit int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(e.config.URL, "/")+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errPoll, path, err)
	}
	if e.config.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+e.config.APIKey)
	}
	response, err := f.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errPoll, path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w %s: %w", errPoll, path, err)
	case response.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%w %s: %w", errPoll, path, errNotThere)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w %s: %s", errPoll, path, response.Status)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%w %s: more than %d bytes", errPoll, path, limit)
	}
	return body, nil
}

// wantsModels tells whether an engine that is in use is to be asked for its models. One
// whose models are not known is asked each time.
func (f *Fleet) wantsModels(e *engine, ago time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.health.up {
		e.models = nil // another one may come back
		return false
	}
	return e.models == nil || ago >= f.options.ModelsEvery
}

func (f *Fleet) askModels(ctx context.Context, e *engine) {
	ctx, cancel := context.WithTimeout(ctx, f.options.PollTimeout)
	defer cancel()
	body, err := f.get(ctx, e, "/v1/models", maxOtherBytes)
	if err != nil {
		f.log.Debug("an engine does not tell its models", "engine", e.config.Name, "error", err)
		return
	}
	models, err := parseModels(body)
	if err != nil {
		f.log.Warn("an engine's models can't be read", "engine", e.config.Name, "error", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.models = models
}

// maxModels that an engine serves.
const maxModels = 10_000

func parseModels(body []byte) ([]Model, error) {
	var list struct {
		Data []Model `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	if len(list.Data) == 0 || len(list.Data) > maxModels {
		return nil, fmt.Errorf("%w: %d models; want 1 to %d", errPoll, len(list.Data), maxModels)
	}
	return list.Data, nil
}

// giveUp ends what an engine has been answering that is out for too long.
func (f *Fleet) giveUp(e *engine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.health.up || time.Since(e.health.since) < f.options.GiveUpAfter {
		return
	}
	for i := range e.ranks {
		for flight := range e.ranks[i].flights {
			flight.cancel(ErrEngineDown)
		}
	}
}
