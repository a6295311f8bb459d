package daemon

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/admin"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// fetch asks a daemon's administration socket. A daemon that ends may cut an answer off:
// then, too, the code is 0, and the text says why.
func fetch(t *testing.T, dir, session, method, path, body string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialOwn(ctx, filepath.Join(dir, config.AdminSocket(session)))
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://daemon"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	reply, err := (&http.Client{Transport: transport, Timeout: patience}).Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return 0, err.Error()
	}
	return reply.StatusCode, string(text)
}

func TestReadyAndMetrics(t *testing.T) {
	dir := shortDir(t)
	worker := config.WorkerSocket("host-0")
	startWorker(t, dir)
	if code, text := fetch(t, dir, worker, "GET", "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(text, "mooncake-lookupd can't be reached") {
		t.Errorf("a worker without a store: %d %s", code, text)
	}
	if code, _ := fetch(t, dir, worker, "GET", "/healthz", ""); code != http.StatusOK {
		t.Errorf("it is alive all the same: %d", code)
	}
	lookupd := startLookupd(t, dir)
	for _, session := range []string{worker, config.LookupdSocket} {
		until(t, session+" is ready", func() bool { code, _ := fetch(t, dir, session, "GET", "/readyz", ""); return code == http.StatusOK })
	}
	for session, want := range map[string]string{
		worker: "mooncake_sidecar_worker_store_ready 1", config.LookupdSocket: `mooncake_sidecar_store_capacity_bytes{tier="memory"}`,
	} {
		if code, text := fetch(t, dir, session, "GET", "/metrics", ""); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d, no %s", session, code, want)
		}
	}
	// Scrapes while the daemon stops read nothing that is gone.
	stop := make(chan struct{})
	scraping := make(chan struct{})
	go func() {
		defer close(scraping)
		for {
			select {
			case <-stop:
				return
			default:
				fetch(t, dir, config.LookupdSocket, "GET", "/metrics", "")
			}
		}
	}()
	lookupd.end()
	close(stop)
	<-scraping
	if _, err := os.Stat(filepath.Join(dir, config.AdminSocket(config.LookupdSocket))); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	until(t, "the worker sees that the store is gone", func() bool {
		code, _ := fetch(t, dir, worker, "GET", "/readyz", "")
		return code == http.StatusServiceUnavailable
	})
}

func TestTCP(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := shortDir(t)
	cfg := lookupdConfig(t, dir)
	cfg.HTTPListen = taken.Addr().String()
	if err := RunLookupd(t.Context(), cfg, Control{}, quiet); err == nil || !strings.Contains(err.Error(), "http_listen") {
		t.Errorf("an address in use: %v", err)
	}
	// An autostarted daemon does not listen, so it does not mind.
	cfg.Autostarted, cfg.Linger = true, time.Millisecond
	start(t, func(ctx context.Context) error { return RunLookupd(ctx, cfg, Control{}, quiet) }).wait()
}

func TestHangupAndReload(t *testing.T) {
	dir := shortDir(t)
	cfg := lookupdConfig(t, dir)
	hangups, reloaded := make(chan os.Signal, 1), make(chan struct{}, 10)
	level := new(slog.LevelVar)
	control := Control{Level: level, Hangups: hangups, Reload: func() admin.Reloaded {
		reloaded <- struct{}{}
		return admin.Reloaded{Applied: []string{"log_level: info -> debug"}, Ignored: []string{"store_bytes: 1 -> 2"}}
	}}
	start(t, func(ctx context.Context) error { return RunLookupd(ctx, cfg, control, quiet) })
	until(t, "lookupd answers", func() bool { _, err := LookupdStatus(t.Context(), dir); return err == nil })
	hangups <- syscall.SIGHUP
	<-reloaded
	if code, text := fetch(t, dir, config.LookupdSocket, "POST", "/reload", ""); code != http.StatusOK || !strings.Contains(text, "store_bytes: 1 -> 2") {
		t.Errorf("%d %s", code, text)
	}
	<-reloaded
	if code, text := fetch(t, dir, config.LookupdSocket, "PUT", "/loglevel", "warn"); code != http.StatusOK || text != "warn\n" || level.Level() != slog.LevelWarn {
		t.Errorf("%d %q, level %s", code, text, level.Level())
	}
	if code, text := fetch(t, dir, config.LookupdSocket, "PUT", "/loglevel", "loud"); code != http.StatusBadRequest || !strings.Contains(text, "debug, info, warn or error") {
		t.Errorf("%d %q", code, text)
	}
}

// A worker's administration socket is no worker's session socket to a new
// lookupd that looks for segments.
func TestAdminSocketsAreNoSessionSockets(t *testing.T) {
	for _, session := range []string{config.LookupdSocket, config.WorkerSocket("host-0")} {
		if match, err := filepath.Match(config.WorkerSocketPattern, config.AdminSocket(session)); match || err != nil {
			t.Errorf("%s would be asked for segments (%v)", config.AdminSocket(session), err)
		}
	}
}
