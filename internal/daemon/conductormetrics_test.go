package daemon

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// routingConductor runs a conductor with a router in front of an engine that tells no
// events, lets one request go through it, and returns its address.
func routingConductor(t *testing.T) (address string) {
	t.Helper()
	e := newFakeEngine(t, 6004)
	cfg := &config.ConductorConfig{Listen: freeAddress(t), SnapshotDir: t.TempDir(), Engines: "e=" + e.URL}
	cfg.RuntimeDir = shortDir(t)
	cfg.SetDefaults(os.DirFS("/"))
	start(t, func(ctx context.Context) error {
		return RunConductor(ctx, cfg, true, Control{}, slog.New(slog.DiscardHandler))
	})
	base := "http://" + cfg.Listen
	until(t, "the conductor has an engine to send to", func() bool { return status(t, base+"/readyz") == http.StatusOK })
	reply, err := http.Post(base+"/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if _, err := io.Copy(io.Discard, reply.Body); err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", reply.Status, err)
	}
	return cfg.Listen
}

// status of an answer, 0 for none.
func status(t *testing.T, url string) int {
	t.Helper()
	code, _ := fetchFrom(t, http.DefaultClient, url)
	return code
}

// With serve the conductor's metrics have the router's and its engines', without it none.
func TestConductorShowsTheRouter(t *testing.T) {
	address := routingConductor(t)
	var text string
	until(t, "the request is counted", func() bool {
		_, text = fetchFrom(t, http.DefaultClient, "http://"+address+"/metrics")
		return strings.Contains(text, `mooncake_sidecar_router_answers_total{path="/v1/completions",status="2xx"} 1`)
	})
	for _, want := range []string{
		`mooncake_sidecar_router_added_duration_seconds_count 1`, `mooncake_sidecar_router_first_token_duration_seconds_count 1`,
		`mooncake_sidecar_router_decisions_total 1`, `mooncake_sidecar_router_engine_requests_total{engine="e"} 1`,
		`mooncake_sidecar_router_engine_state{engine="e",state="in_use"} 1`, `mooncake_sidecar_router_refused_requests_total{reason="full"} 0`,
		`mooncake_sidecar_conductor_snapshot_interval_seconds 300`, `mooncake_sidecar_conductor_snapshot_age_seconds `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	alone := startConductor(t, false, Control{}, nil)
	if _, text := alone.get(t, "/metrics"); strings.Contains(text, "mooncake_sidecar_router_") || !strings.Contains(text, "mooncake_sidecar_conductor_blocks") {
		t.Error("an index without a router shows one")
	}
}
