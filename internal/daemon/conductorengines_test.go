package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// Engines are asked for their streams until they tell, and again where they have changed.
func TestConductorFollowsEngines(t *testing.T) {
	e := newFakeEngine(t, 0)
	index := &fakeConductorIndex{}
	var log lockedBuffer
	f := newFollower([]config.Engine{{Name: "e", URL: e.URL}}, index, e.Client(), slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually(t, func() bool { return strings.Contains(log.String(), "can't be followed") })
	e.port.Store(6001)
	eventually(t, func() bool {
		s := index.Services()
		return len(s) == 1 && s[0].Endpoint == "tcp://127.0.0.1:6001" && s[0].Instance == "e" && s[0].Model == "tiny"
	})
	known := []contract.Service{index.Services()[0].Service}
	moved := known[0]
	moved.Endpoint = "tcp://127.0.0.1:6002"
	now, err := f.change(t.Context(), known, []contract.Service{moved})
	if s := index.Services(); err != nil || len(now) != 1 || len(s) != 1 || s[0].Endpoint != moved.Endpoint {
		t.Errorf("%v, %+v", err, s)
	}
	// One that somebody has unregistered comes back.
	if err := index.Unregister(t.Context(), moved.Key()); err != nil {
		t.Fatal(err)
	}
	if now, err := f.change(t.Context(), now, now); err != nil || len(now) != 1 || len(index.Services()) != 1 {
		t.Errorf("%v, %v", now, err)
	}
}

// After a restart an engine that has moved is followed where it is now.
func TestFollowerAfterRestart(t *testing.T) {
	e := newFakeEngine(t, 6001)
	index := &fakeConductorIndex{}
	old := contract.Service{Endpoint: "tcp://127.0.0.1:5999", Type: contract.TypeVLLM, Model: "tiny", Instance: "e", Tenant: "default"}
	if _, err := index.RegisterAs(t.Context(), contract.Found, old); err != nil {
		t.Fatal(err)
	}
	f := newFollower([]config.Engine{{Name: "e", URL: e.URL}}, index, e.Client(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually(t, func() bool {
		s := index.Services()
		return len(s) == 1 && s[0].Endpoint == "tcp://127.0.0.1:6001"
	})
}

// The key is shown to engines of the configuration, and to nobody else.
func TestEngineKey(t *testing.T) {
	e := newFakeEngine(t, 6001)
	inner := e.Config.Handler
	var shown atomic.Bool
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1") && r.Header.Get("Authorization") != "Bearer secret-of-the-engine" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			shown.Store(true)
		}
		http.NotFound(w, r)
	}))
	defer other.Close()
	r := startConductor(t, false, Control{}, func(c *config.ConductorConfig) {
		c.Engines, c.EngineKeyFile = "e="+e.URL, tokenFile(t, "secret-of-the-engine")
	})
	eventually(t, func() bool { return len(r.index.Services()) == 1 })
	response, err := http.Post(r.base+"/register", "application/json", strings.NewReader(`{"engine":"`+other.URL+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest || shown.Load() {
		t.Errorf("%s, the key was shown: %t", response.Status, shown.Load())
	}
}

// A conductor's own status is had with its own files, whoever signed them.
func TestConductorStatusTLS(t *testing.T) {
	ca := newAuthority(t)
	ca.make("server", ca)
	ca.make("other", ca)
	for _, authority := range []string{"", ca.file("ca.pem")} {
		r := startConductor(t, false, Control{}, func(c *config.ConductorConfig) {
			c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = ca.file("server.pem"), ca.file("server.key"), authority
		})
		if _, err := ConductorStatus(t.Context(), r.cfg); err != nil {
			t.Error(err)
		}
		another := *r.cfg
		another.TLSCertFile, another.TLSKeyFile = ca.file("other.pem"), ca.file("other.key")
		if _, err := ConductorStatus(t.Context(), &another); err == nil {
			t.Error("another certificate of the same authority was taken for its own")
		}
	}
}

// After a restart the streams of an engine that the configuration has no more are not followed;
// those that somebody registered are.
func TestEnginesThatAreGoneAfterARestart(t *testing.T) {
	dir := t.TempDir()
	index := func(engines string) conductorIndex {
		cfg := &config.ConductorConfig{SnapshotDir: dir, Engines: engines}
		cfg.SetDefaults(os.DirFS("/"))
		log := slog.New(slog.DiscardHandler)
		index, end, err := openIndex(t.Context(), cfg, nil, supervise(log), log)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		t.Cleanup(func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		})
		return &endedIndex{index, ctx}
	}
	names := func(index conductorIndex) (all []string) {
		for _, s := range index.Services() {
			all = append(all, s.Instance)
		}
		return all
	}
	first := index("")
	for i, how := range []contract.Ways{contract.Called, contract.Found, contract.Found} {
		name := string(rune('a' + i))
		s := contract.Service{Endpoint: "tcp://127.0.0.1:1", Type: contract.TypeVLLM, Model: "m", Instance: name}
		if _, err := first.RegisterAs(t.Context(), how, s); err != nil {
			t.Fatal(err)
		}
	}
	_ = first.(*endedIndex).end()
	if got := names(index("c=http://127.0.0.1:1")); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("%v are followed", got)
	}
}

// endedIndex is an index that ends, with its last snapshot, when end is called.
type endedIndex struct {
	conductorIndex
	over context.Context //nolint:containedctx // it is over
}

func (e *endedIndex) end() error { return e.Run(e.over) }
