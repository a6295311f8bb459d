package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a correct run never waits for.
const patience = 30 * time.Second

// rig is a server on a private and a public socket.
type rig struct {
	t               *testing.T
	server          *Server
	ready           Readiness
	private, public *http.Client
	level           string
	reloaded        Reloaded
}

func newRig(t *testing.T, metrics http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, level: "info"}
	r.server = New(Config{
		Daemon: "mooncake-test", Version: "v1", Revision: "abc", Ready: &r.ready, Metrics: metrics,
		Level: func() string { return r.level },
		SetLevel: func(level string) error {
			if level == "loud" {
				return errors.New("no such level")
			}
			r.level = level
			return nil
		},
		Reload: func() Reloaded { return r.reloaded },
		Log:    slog.New(slog.DiscardHandler),
	})
	dir, err := os.MkdirTemp("", "ad") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(r.server.Close)
	r.private, r.public = r.serve(filepath.Join(dir, "p"), true), r.serve(filepath.Join(dir, "q"), false)
	return r
}

// serve returns a client of a listener at path.
func (r *rig) serve(path string, private bool) *http.Client {
	r.t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server.Serve(l, private, func(err error) { r.t.Error(err) })
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// ask returns the status and the body of an answer.
func (r *rig) ask(c *http.Client, method, path, body string) (int, string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, "http://daemon"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	reply, err := c.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

func metricsStub(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "m 1\n") }

func TestRoutes(t *testing.T) {
	r := newRig(t, metricsStub)
	for _, c := range []struct {
		client       *http.Client
		method, path string
		body         string
		code         int
		says         string
	}{
		{r.public, "GET", "/healthz", "", 200, "ok"},
		{r.public, "GET", "/livez", "", 200, "ok"},
		{r.public, "HEAD", "/healthz", "", 200, ""},
		{r.public, "GET", "/metrics", "", 200, "m 1"},
		{r.public, "GET", "/version", "", 200, `"mooncake-test"`},
		{r.private, "GET", "/version", "", 200, `"abc"`},
		{r.public, "GET", "/readyz", "", 200, `"ready": true`},
		{r.public, "POST", "/healthz", "", 405, ""},
		{r.public, "GET", "/nothing", "", 404, ""},
		{r.private, "GET", "/debug/pprof/", "", 200, "goroutine"},
		{r.private, "GET", "/debug/pprof/heap?debug=1", "", 200, "heap profile"},
		{r.public, "GET", "/debug/pprof/", "", 404, ""},
		{r.public, "GET", "/debug/pprof/cmdline", "", 404, ""},
		{r.private, "GET", "/loglevel", "", 200, "info"},
		{r.public, "GET", "/loglevel", "", 404, ""},
		{r.public, "PUT", "/loglevel", "debug", 404, ""},
		{r.private, "PUT", "/loglevel", "loud", 400, "no such level"},
		{r.private, "PUT", "/loglevel", strings.Repeat("x", 1000), 400, "too large"},
		{r.private, "GET", "/loglevel", "", 200, "info"},
		{r.private, "PUT", "/loglevel", "debug\n", 200, "debug"},
		{r.private, "POST", "/reload", "", 200, `"applied"`},
		{r.private, "GET", "/reload", "", 405, ""},
		{r.public, "POST", "/reload", "", 404, ""},
	} {
		if code, text := r.ask(c.client, c.method, c.path, c.body); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s %s: %d %.100q, want %d %q", c.method, c.path, code, text, c.code, c.says)
		}
	}
	r.reloaded = Reloaded{Error: "line 3"}
	if code, text := r.ask(r.private, "POST", "/reload", ""); code != 422 || !strings.Contains(text, "line 3") {
		t.Errorf("a reload that failed: %d %s", code, text)
	}
}

func TestReadiness(t *testing.T) {
	r := newRig(t, metricsStub)
	r.ready.SetProblem("sessions", "the daemon is starting")
	problem := "no memory"
	r.ready.Set("memory", func() string { return problem })
	for _, want := range []struct {
		code    int
		reasons []string
	}{{503, []string{"no memory", "the daemon is starting"}}, {503, []string{"", "the daemon is starting"}}, {200, []string{"", ""}}} {
		code, text := r.ask(r.public, "GET", "/readyz", "")
		var got struct {
			Ready  bool
			Checks []Verdict
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || code != want.code || got.Ready != (code == 200) || len(got.Checks) != 2 {
			t.Fatalf("%d, %v: %s", code, err, text)
		}
		for i, name := range []string{"memory", "sessions"} {
			if v := got.Checks[i]; v.Check != name || v.Reason != want.reasons[i] || v.OK != (v.Reason == "") {
				t.Errorf("check %d is %+v, want %q", i, v, want.reasons[i])
			}
		}
		if problem == "" {
			r.ready.SetProblem("sessions", "")
		}
		problem = ""
	}
}

// What an answer reads must outlast it: Close waits, and what takes too long is
// told to end.
func TestCloseWaitsForAnswers(t *testing.T) {
	entered, left := make(chan struct{}), false
	r := newRig(t, func(_ http.ResponseWriter, request *http.Request) {
		close(entered)
		<-request.Context().Done()
		left = true
	})
	var asking sync.WaitGroup
	asking.Go(func() {
		if reply, err := r.public.Get("http://daemon/metrics"); err == nil { // it is cut off, or empty
			_ = reply.Body.Close()
		}
	})
	<-entered
	r.server.Close()
	if !left {
		t.Error("the answer goes on after Close")
	}
	asking.Wait()
}

// A peer that connects and says nothing takes a place, and no more than that;
// one that leaves makes room.
func TestConnectionsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLimited(inner, 2)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	accepted := make(chan net.Conn)
	ended := make(chan error)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- conn
		}
	}()
	for range 3 {
		dial()
	}
	first := <-accepted
	<-accepted
	if len(l.room) != 2 {
		t.Errorf("%d places taken of 2", len(l.room))
	}
	select {
	case <-accepted:
		t.Error("a third connection was accepted")
	default:
	}
	for range 2 { // closing twice makes room once
		_ = first.Close()
	}
	<-accepted
	_ = l.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("ended with %v", err)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	r := newRig(t, metricsStub)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://daemon/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		request.Header.Set(fmt.Sprintf("X-%d", i), strings.Repeat("a", 1000))
	}
	reply, err := r.public.Do(request)
	if err != nil {
		return // it was cut off while it spoke
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%s", reply.Status)
	}
}
