package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
	"github.com/mooncake-sidecar/sidecar/conductor/router"
	"github.com/mooncake-sidecar/sidecar/internal/admin"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// Bounds of a connection with clients of the conductor. Those of the router have
// others: an answer may take as long as an engine does.
const (
	frontHeaderTimeout = 5 * time.Second
	frontReadTimeout   = 60 * time.Second
	frontWriteTimeout  = 60 * time.Second
	frontIdleTimeout   = 2 * time.Minute
	frontHeaderBytes   = 64 << 10
	frontConnections   = 8192
	// frontStreams are calls of one gRPC connection at a time.
	frontStreams = 64
	// frontStopTimeout is how long answers under way may take when the daemon ends, and
	// streamStopTimeout those of engines.
	frontStopTimeout  = time.Second
	streamStopTimeout = 10 * time.Second
)

// front is where clients come in: addresses, TLS, tokens, and who answers what.
type front struct {
	cfg    *config.ConductorConfig
	tokens api.Tokens
	// tls is nil without. Its certificate is the one at hand.
	tls         *tls.Config
	certificate atomic.Pointer[tls.Certificate]
	authorities atomic.Pointer[x509.CertPool]

	calls     *http.ServeMux
	operators http.Handler
	router    *router.Router // nil without
}

// newFront reads tokens and certificates.
func newFront(cfg *config.ConductorConfig) (*front, error) {
	f := &front{cfg: cfg}
	if cfg.TLSCertFile != "" {
		f.tls = &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.certificate.Load(), nil },
		}
		if cfg.TLSClientCAFile != "" {
			f.tls.ClientAuth = tls.RequireAndVerifyClientCert
			static := f.tls.Clone()
			f.tls.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
				now := static.Clone()
				now.ClientCAs = f.authorities.Load()
				return now, nil
			}
		}
	}
	err := f.load()
	return f, err
}

// load reads the files anew. What can't be read leaves all as it was.
func (f *front) load() error {
	var tokens []string
	var err error
	if f.cfg.TokenFile != "" {
		if tokens, err = api.ReadTokens(f.cfg.TokenFile); err != nil {
			return fmt.Errorf("%w: %w", config.ErrValue, err)
		}
	}
	if f.tls != nil {
		pair, err := tls.LoadX509KeyPair(f.cfg.TLSCertFile, f.cfg.TLSKeyFile)
		if err != nil {
			return fmt.Errorf("tls_cert_file: %w: %w", config.ErrValue, err)
		}
		if f.cfg.TLSClientCAFile != "" {
			pool, err := authorities(f.cfg.TLSClientCAFile)
			if err != nil {
				return err
			}
			f.authorities.Store(pool)
		}
		f.certificate.Store(&pair)
	}
	f.tokens.Set(tokens)
	return nil
}

// authorities reads certificates of those who sign others.
func authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("tls_client_ca_file: %w: %w", config.ErrValue, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("tls_client_ca_file: %w: no certificate in %s", config.ErrValue, file)
	}
	return pool, nil
}

// reloads has the files read again with the configuration.
func (f *front) reloads(control *Control) {
	reload := control.Reload
	if reload == nil {
		return
	}
	control.Reload = func() admin.Reloaded {
		report := reload()
		if report.Error != "" || f.cfg.TokenFile == "" && f.tls == nil {
			return report
		}
		if err := f.load(); err != nil {
			report.Error = err.Error()
			return report
		}
		report.Applied = append(report.Applied, "tokens and certificates were read again")
		return report
	}
}

// add says who answers.
func (f *front) add(server *api.Server, operators http.Handler) {
	f.calls, f.operators = http.NewServeMux(), operators
	server.Register(f.calls)
}

// mount puts a router in front of the calls: what it owns it answers.
func (f *front) mount(r *router.Router) { f.router = r }

// open are the paths that nobody needs a token for: whoever asks them knows nothing yet.
func open(path string) bool { return path == "/healthz" || path == "/livez" || path == "/readyz" }

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/readyz" && !f.tokens.Allows(r.Header.Get("Authorization")) {
		w.Header().Set("Content-Type", "application/json")
		verdict := &bare{w, http.StatusOK}
		f.operators.ServeHTTP(verdict, r)
		_, _ = fmt.Fprintf(w, "{\"ready\":%t}\n", verdict.status == http.StatusOK) // a peer that left needs no answer
		return
	}
	if open(r.URL.Path) {
		f.operators.ServeHTTP(w, r)
		return
	}
	f.tokens.Protect(http.HandlerFunc(f.known)).ServeHTTP(w, r)
}

// bare leaves out what an answer says: names of instances are for those who may ask.
type bare struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *bare) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (*bare) Write(p []byte) (int, error) { return len(p), nil }

// known answers who was let in. The token that let them in is ours: engines, to which
// requests go on, are not to see it.
func (f *front) known(w http.ResponseWriter, r *http.Request) {
	if f.cfg.TokenFile != "" {
		r.Header.Del("Authorization")
	}
	switch {
	case f.router != nil && f.router.Owns(r):
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Time{}) // the router sets one for each part of an answer
		f.router.ServeHTTP(w, r)
	case r.URL.Path == "/metrics" || r.URL.Path == "/version":
		f.operators.ServeHTTP(w, r)
	default:
		f.calls.ServeHTTP(w, r)
	}
}

// serve answers until ctx ends, and lets what is under way finish, within bounds.
func (f *front) serve(ctx context.Context, l net.Listener, log *slog.Logger) error {
	l = admin.Limit(l, frontConnections)
	if f.tls != nil {
		l = tls.NewListener(l, f.tls)
	}
	server := &http.Server{
		Handler: f, ReadHeaderTimeout: frontHeaderTimeout, ReadTimeout: frontReadTimeout, WriteTimeout: frontWriteTimeout, IdleTimeout: frontIdleTimeout,
		MaxHeaderBytes: frontHeaderBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	var stopping sync.WaitGroup
	stopping.Add(1)
	stopped := context.AfterFunc(ctx, func() {
		defer stopping.Done()
		patience := frontStopTimeout
		if f.router != nil {
			patience = streamStopTimeout
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if server.Shutdown(end) != nil {
			_ = server.Close() // who is still there was told to end
		}
	})
	err := server.Serve(l)
	if !stopped() {
		stopping.Wait()
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("http: %w", errors.Join(err, server.Close()))
}

// serveGRPC answers gRPC at an address of its own, if there is to be one.
func (f *front) serveGRPC(ctx context.Context, cfg *config.ConductorConfig, server *api.Server, ready func() bool, background *sync.WaitGroup, fail func(error), log *slog.Logger) error {
	if cfg.GRPCListen == "" {
		return nil
	}
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", cfg.GRPCListen)
	if isTaken(err) {
		return fmt.Errorf("%w: something listens at %s", ErrAlreadyRunning, cfg.GRPCListen)
	}
	if err != nil {
		return fmt.Errorf("grpc_listen: %w", err)
	}
	opts := append(server.Guard(&f.tokens, func(method string) bool { return slices.Contains(healthMethods(), method) }),
		grpc.MaxConcurrentStreams(frontStreams), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: frontIdleTimeout}),
		grpc.MaxRecvMsgSize(int(cfg.MaxBodyBytes)), grpc.InitialWindowSize(api.WindowBytes), grpc.InitialConnWindowSize(api.WindowBytes)) //nolint:gosec // a gibibyte at most
	if f.tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(f.tls)))
	}
	calls := grpc.NewServer(opts...)
	conductorpb.RegisterConductorServer(calls, server.GRPC())
	healthpb.RegisterHealthServer(calls, &health{ready: ready, ctx: ctx, services: []string{"", conductorpb.Conductor_ServiceDesc.ServiceName}})
	reflection.Register(calls)
	log.Info("gRPC", "address", l.Addr().String())
	background.Go(func() {
		if err := calls.Serve(server.Listener(admin.Limit(l, frontConnections))); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			fail(fmt.Errorf("grpc: %w", err))
		}
	})
	background.Go(func() {
		<-ctx.Done()
		stopCalls(calls)
	})
	return nil
}

// healthMethods need no token.
func healthMethods() (methods []string) {
	for _, m := range healthpb.Health_ServiceDesc.Methods {
		methods = append(methods, "/"+healthpb.Health_ServiceDesc.ServiceName+"/"+m.MethodName)
	}
	return methods
}

// isTaken tells whether an address is somebody else's.
func isTaken(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
