package daemon

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/internal/admin"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// fakeConductorIndex keeps services.
type fakeConductorIndex struct {
	mu       sync.Mutex
	services []contract.Status
	unready  []string
	ran      atomic.Bool
}

func (f *fakeConductorIndex) Register(_ context.Context, s contract.Service) (contract.Registered, error) {
	return f.add(contract.Status{Service: s, Ways: contract.Called})
}

func (f *fakeConductorIndex) RegisterAs(_ context.Context, how contract.Ways, s contract.Service) (contract.Registered, error) {
	if s.BlockTokens < 0 {
		return contract.Registered{}, &contract.FieldError{Field: "block_size", Text: "below zero"}
	}
	return f.add(contract.Status{Service: s, Ways: how})
}

func (f *fakeConductorIndex) add(s contract.Status) (contract.Registered, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.services {
		if f.services[i].Service == s.Service {
			return contract.Registered{Existed: true}, nil
		}
		if f.services[i].Key() == s.Key() {
			return contract.Registered{}, contract.ErrConflict
		}
	}
	f.services = append(f.services, s)
	return contract.Registered{}, nil
}

func (f *fakeConductorIndex) Unregister(_ context.Context, key contract.ServiceKey) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.services {
		if f.services[i].Key() == key {
			f.services = append(f.services[:i:i], f.services[i+1:]...)
			return nil
		}
	}
	return contract.ErrNotFound
}

func (f *fakeConductorIndex) Services() []contract.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]contract.Status(nil), f.services...)
}

func (f *fakeConductorIndex) Query(_ *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	return dst
}
func (f *fakeConductorIndex) View(int) contract.View { return contract.View{} }
func (f *fakeConductorIndex) Stats() contract.Stats  { return contract.Stats{Blocks: 7} }

func (f *fakeConductorIndex) Unready() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unready
}

func (f *fakeConductorIndex) Snapshot(context.Context, io.Writer) error { return nil }

func (f *fakeConductorIndex) Run(ctx context.Context) error {
	f.ran.Store(true)
	defer f.ran.Store(false)
	<-ctx.Done()
	return nil
}

// conductorRun is a conductor in this process.
type conductorRun struct {
	cfg   *config.ConductorConfig
	index *fakeConductorIndex
	log   lockedBuffer
	base  string
	stop  func() error
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// startConductor runs one until the test ends.
func startConductor(t *testing.T, serve bool, control Control, change func(*config.ConductorConfig)) *conductorRun {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &conductorRun{cfg: &config.ConductorConfig{Listen: freeAddress(t)}, index: &fakeConductorIndex{}}
	r.cfg.RuntimeDir = dir
	if change != nil {
		change(r.cfg)
	}
	r.cfg.SetDefaults(os.DirFS("/"))
	if err := r.cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	open := func(context.Context, *config.ConductorConfig, []contract.Service, *supervision, *slog.Logger) (conductorIndex, func() error, error) {
		return r.index, func() error {
			if r.index.ran.Load() {
				return errors.New("closed while it runs")
			}
			return nil
		}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- runConductor(ctx, r.cfg, serve, control, open, slog.New(slog.NewTextHandler(&r.log, nil)))
	}()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
	r.base = "http://" + r.cfg.Listen
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(r.log.String(), "mooncake-conductor is ready") {
		select {
		case err := <-done:
			done <- err
			t.Fatalf("it did not start: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not start\n%s", &r.log)
		}
	}
	return r
}

// get returns status and body.
func (r *conductorRun) get(t *testing.T, path string, header ...string) (int, string) {
	t.Helper()
	return fetchFrom(t, http.DefaultClient, r.base+path, header...)
}

func fetchFrom(t *testing.T, client *http.Client, url string, header ...string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestConductorServes(t *testing.T) {
	r := startConductor(t, false, Control{}, func(c *config.ConductorConfig) {
		c.Static = []config.StaticService{
			{Entry: "a", Instance: "a", Endpoint: "tcp://127.0.0.1:1", Type: "vLLM", Model: "m", BlockTokens: 16},
			{Entry: "b", Instance: "b", Type: "TGI"}, {Entry: "c", Instance: "c", BlockTokens: -1},
		}
		c.Notes = []string{"a note of the configuration"}
	})
	if code, body := r.get(t, "/services"); code != 200 || !strings.Contains(body, `"InstanceID":"a"`) || !strings.Contains(body, `"static":true`) {
		t.Errorf("%d %s", code, body)
	}
	// What the file says wrong keeps nothing from being served, and shows.
	if code, body := r.get(t, "/readyz"); code != 200 || !strings.Contains(body, `b: type \"TGI\"`) || !strings.Contains(body, "c: block_size") {
		t.Errorf("%d %s", code, body)
	}
	r.index.mu.Lock()
	r.index.unready = []string{"reading a snapshot"}
	r.index.mu.Unlock()
	if code, body := r.get(t, "/readyz"); code != 503 || !strings.Contains(body, "reading a snapshot") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := r.get(t, "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("%d %s", code, body)
	}
	_, _ = r.get(t, "/query") // 405
	code, body := r.get(t, "/metrics")
	for _, want := range []string{
		"mooncake_sidecar_conductor_blocks 7", `mooncake_sidecar_conductor_streams{state="connecting"} 1`, `mooncake_sidecar_ready{check="index"} 0`,
		`mooncake_sidecar_conductor_calls_total{call="/query",status="4xx"} 1`, `program="mooncake-conductor"`,
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, no %s", code, want)
		}
	}
	for _, want := range []string{"a note of the configuration", "a service of the contract file is not registered"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("no %q in the log", want)
		}
	}
	status, err := ConductorStatus(t.Context(), r.cfg)
	if err != nil || status.Conductor.Blocks != 7 || status.Conductor.Services != 1 || status.Conductor.Ready || status.Daemon != "mooncake-conductor" || status.Version == "" {
		t.Errorf("%+v, %v", status, err)
	}
	// Its address is taken now.
	again := *r.cfg
	open := func(context.Context, *config.ConductorConfig, []contract.Service, *supervision, *slog.Logger) (conductorIndex, func() error, error) {
		return nil, nil, errors.New("it was opened")
	}
	if err := runConductor(t.Context(), &again, false, Control{}, open, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrAlreadyRunning) {
		t.Errorf("a second one: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := ConductorStatus(t.Context(), r.cfg); !errors.Is(err, ErrNotRunning) {
		t.Errorf("%v", err)
	}
}

const testToken = "0123456789abcdef"

func tokenFile(t *testing.T, tokens ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(name, []byte(strings.Join(tokens, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestConductorTokens(t *testing.T) {
	hangups := make(chan os.Signal)
	control := Control{Hangups: hangups, Reload: func() admin.Reloaded { return admin.Reloaded{} }}
	grpcAt := freeAddress(t)
	r := startConductor(t, false, control, func(c *config.ConductorConfig) {
		c.TokenFile, c.GRPCListen = tokenFile(t, testToken), grpcAt
	})
	bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	for _, path := range []string{"/services", "/metrics", "/version", "/stats", "/nothing"} {
		if code, _ := r.get(t, path); code != 401 {
			t.Errorf("%s without a token: %d", path, code)
		}
		if code, _ := r.get(t, path, bearer(testToken)...); code == 401 {
			t.Errorf("%s with it: %d", path, code)
		}
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if code, _ := r.get(t, path); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
	r.index.mu.Lock()
	r.index.unready = []string{"a name"}
	r.index.mu.Unlock()
	if code, body := r.get(t, "/readyz"); code != 503 || body != "{\"ready\":false}\n" {
		t.Errorf("without a token: %d %s", code, body)
	}
	if code, body := r.get(t, "/readyz", bearer(testToken)...); code != 503 || !strings.Contains(body, "a name") {
		t.Errorf("with it: %d %s", code, body)
	}
	r.index.mu.Lock()
	r.index.unready = nil
	r.index.mu.Unlock()
	conn, err := grpc.NewClient(grpcAt, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if h, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
	calls := conductorpb.NewConductorClient(conn)
	if _, err := calls.ListServices(t.Context(), &conductorpb.ListServicesRequest{}); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("gRPC without a token: %v", err)
	}
	known := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+testToken)
	if _, err := calls.ListServices(known, &conductorpb.ListServicesRequest{}); err != nil {
		t.Error(err)
	}
	// A client of the same configuration shows it.
	if _, err := ConductorStatus(t.Context(), r.cfg); err != nil {
		t.Error(err)
	}
	// Other tokens, told by SIGHUP; a file with a fault changes nothing.
	write := func(text string) {
		if err := os.WriteFile(r.cfg.TokenFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		hangups <- os.Interrupt
		hangups <- os.Interrupt // the first was done
	}
	write("short")
	if code, _ := r.get(t, "/services", bearer(testToken)...); code != 200 {
		t.Errorf("after a file with a fault: %d", code)
	}
	write("fedcba9876543210")
	if code, _ := r.get(t, "/services", bearer(testToken)...); code != 401 {
		t.Errorf("a token that was taken back: %d", code)
	}
	if code, _ := r.get(t, "/services", bearer("fedcba9876543210")...); code != 200 {
		t.Errorf("a new token: %d", code)
	}
}

// authority signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", nil)
	return a
}

// make writes a certificate and its key; nil signs itself.
func (a *authority) make(name string, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: by == nil, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func TestConductorTLS(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	ca.make("server", ca)
	ca.make("client", ca)
	stranger.make("client", stranger)
	r := startConductor(t, false, Control{}, func(c *config.ConductorConfig) {
		c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = ca.file("server.pem"), ca.file("server.key"), ca.file("ca.pem")
	})
	at := ConductorAt{URL: "https://" + r.cfg.Listen, CAFile: ca.file("ca.pem"), CertFile: ca.file("client.pem"), KeyFile: ca.file("client.key")}
	for name, c := range map[string]struct {
		change func(*ConductorAt)
		ok     bool
	}{
		"one of ours": {func(*ConductorAt) {}, true},
		"nobody":      {func(at *ConductorAt) { at.CertFile, at.KeyFile = "", "" }, false},
		"a stranger": {func(at *ConductorAt) {
			at.CertFile, at.KeyFile = stranger.file("client.pem"), stranger.file("client.key")
		}, false},
		"no TLS":     {func(at *ConductorAt) { at.URL = "http://" + r.cfg.Listen }, false},
		"another CA": {func(at *ConductorAt) { at.CAFile = stranger.file("ca.pem") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			as := at
			c.change(&as)
			client, err := NewConductorClient(&config.ConductorConfig{}, as)
			if err != nil {
				t.Fatal(err)
			}
			defer client.HTTP.CloseIdleConnections()
			if _, err := client.Services(t.Context()); (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
		})
	}
}

// fakeEngine is an engine's server that tells of its streams.
type fakeEngine struct {
	*httptest.Server
	port atomic.Int64 // of its publisher; 0: it answers nothing
	// keys that requests came with, back to back.
	keys lockedBuffer
}

func (e *fakeEngine) authorized() string { return e.keys.String() }

func newFakeEngine(t *testing.T, port int64) *fakeEngine {
	e := &fakeEngine{}
	e.port.Store(port)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(&e.keys, r.Header.Get("Authorization"))
		switch {
		case e.port.Load() == 0:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case r.URL.Path == "/kv_event_sources":
			fmt.Fprintf(w, `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":null,"topic":""}}`, e.port.Load())
		case r.URL.Path == "/health":
		case r.URL.Path == "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
		case r.URL.Path == "/metrics":
			_, _ = io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 0\n")
		case r.URL.Path == "/v1/completions":
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func eventually(t *testing.T, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to be")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// With serve the router is at the same address as the index, behind the same tokens.
func TestConductorRoutes(t *testing.T) {
	e := newFakeEngine(t, 6003)
	r := startConductor(t, true, Control{}, func(c *config.ConductorConfig) {
		c.Engines, c.TokenFile = "e="+e.URL, tokenFile(t, testToken)
	})
	auth := []string{"Authorization", "Bearer " + testToken}
	eventually(t, func() bool { code, _ := r.get(t, "/readyz"); return code == 200 })
	eventually(t, func() bool { return len(r.index.Services()) == 1 })
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/v1/completions", strings.NewReader(`{"model":"tiny","prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if response, err := http.DefaultClient.Do(request); err != nil || response.StatusCode != 401 {
		t.Fatalf("without a token: %v, %v", response, err)
	}
	request, _ = http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/v1/completions", strings.NewReader(`{"model":"tiny","prompt":"a","stream":true}`))
	request.Header.Set(auth[0], auth[1])
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := 0
	for scan := bufio.NewScanner(response.Body); scan.Scan(); {
		if strings.HasPrefix(scan.Text(), "data: ") {
			lines++
		}
	}
	if response.StatusCode != 200 || lines != 4 {
		t.Errorf("%s, %d lines", response.Status, lines)
	}
	if sent := e.authorized(); sent != "" {
		t.Errorf("the engine got %q: the conductor's tokens are not for engines", sent)
	}
	for _, path := range []string{"/services", "/engines", "/decisions", "/stats", "/v1/models"} {
		if code, body := r.get(t, path, auth...); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

func TestConductorFilesWithFaults(t *testing.T) {
	bad := tokenFile(t, "nonsense")
	for name, change := range map[string]func(*config.ConductorConfig){
		"tokens":      func(c *config.ConductorConfig) { c.TokenFile = bad },
		"certificate": func(c *config.ConductorConfig) { c.TLSCertFile, c.TLSKeyFile = bad, bad },
		"authority": func(c *config.ConductorConfig) {
			ca := newAuthority(t)
			c.TLSCertFile, c.TLSKeyFile, c.TLSClientCAFile = ca.file("ca.pem"), ca.file("ca.key"), bad
		},
	} {
		c := &config.ConductorConfig{}
		change(c)
		if _, err := newFront(c); !errors.Is(err, config.ErrValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]*config.ConductorConfig{"no engines": {}, "a key of two lines": {EngineKeyFile: tokenFile(t, "a", "b")}, "no key": {EngineKeyFile: "/nonexistent"}} {
		engines := []config.Engine{{Name: "e", URL: "http://127.0.0.1:1"}}
		if name == "no engines" {
			engines = nil
		}
		c.SetDefaults(os.DirFS("/"))
		if _, err := newRouting(c, engines, &fakeConductorIndex{}, slog.New(slog.DiscardHandler)); !errors.Is(err, config.ErrValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := &config.ConductorConfig{}
	c.SetDefaults(os.DirFS("/"))
	for _, admission := range []string{"none", "everything"} {
		if c.Admission = admission; routerConfig(c).Scheduler.Admission == "" {
			t.Error("an admission was lost")
		}
		if _, err := newRouting(c, []config.Engine{{Name: "e", URL: "http://127.0.0.1:1"}}, &fakeConductorIndex{}, slog.New(slog.DiscardHandler)); !errors.Is(err, config.ErrValue) {
			t.Errorf("admission %s: %v", admission, err)
		}
	}
}
