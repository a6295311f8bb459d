package unary

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testLimit = 4 << 20

// service answers Get with one status a hash, or as the test wants.
type service struct {
	storepb.UnimplementedStoreServer
	get func(*storepb.GetRequest) (*storepb.GetReply, error)
}

func (s *service) Get(_ context.Context, r *storepb.GetRequest) (*storepb.GetReply, error) {
	return s.get(r)
}

func echo(r *storepb.GetRequest) (*storepb.GetReply, error) {
	return &storepb.GetReply{Statuses: make([]byte, len(r.GetHashes())/32), Refs: []uint64{r.GetSession().GetNumber()}}, nil
}

// serve starts a server at path and returns its end.
func serve(t testing.TB, path string, get func(*storepb.GetRequest) (*storepb.GetReply, error)) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(testLimit)
	storepb.RegisterStoreServer(server, &service{get: get})
	var done sync.WaitGroup
	done.Go(func() {
		if err := server.Serve(l); err != nil {
			t.Error("Serve:", err)
		}
	})
	stop = sync.OnceFunc(func() { server.Stop(time.Second); done.Wait() })
	t.Cleanup(stop)
	return stop
}

func newClient(t testing.TB, path string) *Client {
	t.Helper()
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}, testLimit)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestCallsSideBySide(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, echo)
	rpc := storepb.NewStoreClient(newClient(t, path))
	var wg sync.WaitGroup
	for n := range uint64(40) {
		wg.Go(func() {
			for size := range 20 {
				reply, err := rpc.Get(t.Context(), &storepb.GetRequest{Session: &storepb.Session{Number: n}, Hashes: make([]byte, 32*size*50)})
				if err != nil || reply.GetRefs()[0] != n || len(reply.GetStatuses()) != size*50 {
					t.Errorf("call of %d: %v, %v", n, reply.GetRefs(), err)
				}
			}
		})
	}
	wg.Wait()
}

func TestErrorsKeepCodeAndText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, func(r *storepb.GetRequest) (*storepb.GetReply, error) {
		if r.GetSession() == nil {
			return nil, errors.New("plain")
		}
		return nil, status.Error(codes.FailedPrecondition, strings.Repeat("ü", maxErrorBytes))
	})
	rpc := storepb.NewStoreClient(newClient(t, path))
	_, err := rpc.Get(t.Context(), &storepb.GetRequest{Session: &storepb.Session{}})
	if st := status.Convert(err); st.Code() != codes.FailedPrecondition || st.Message() != strings.Repeat("ü", maxErrorBytes/2) {
		t.Errorf("got %v with a text of %d bytes", st.Code(), len(st.Message()))
	}
	if _, err := rpc.Get(t.Context(), &storepb.GetRequest{}); status.Code(err) != codes.Unknown || status.Convert(err).Message() != "plain" {
		t.Errorf("got %v", err)
	}
	if _, err := rpc.Stats(t.Context(), &storepb.StatsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("method that the service lacks: %v", err)
	}
	if err := newClient(t, path).Invoke(t.Context(), "/no/such", &storepb.StatsRequest{}, &storepb.StatsReply{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: %v", err)
	}
}

// TestDeadline: a call that is given up returns, and its late answer is not
// taken for another call's.
func TestDeadline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	held := make(chan struct{})
	serve(t, path, func(r *storepb.GetRequest) (*storepb.GetReply, error) {
		if r.GetSession().GetNumber() == 1 {
			<-held
		}
		return echo(r)
	})
	client := newClient(t, path)
	rpc := storepb.NewStoreClient(client)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := rpc.Get(ctx, &storepb.GetRequest{Session: &storepb.Session{Number: 1}}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go cancel()
	if _, err := rpc.Get(ctx, &storepb.GetRequest{Session: &storepb.Session{Number: 1}}); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	close(held)
	for n := range uint64(10) {
		if reply, err := rpc.Get(t.Context(), &storepb.GetRequest{Session: &storepb.Session{Number: n + 2}}); err != nil || reply.GetRefs()[0] != n+2 {
			t.Errorf("got %v, %v", reply, err)
		}
	}
}

// TestServerRestarts: connections that ended while they were idle cost no call.
func TestServerRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stop := serve(t, path, echo)
	rpc := storepb.NewStoreClient(newClient(t, path))
	get := func() error {
		_, err := rpc.Get(t.Context(), &storepb.GetRequest{Hashes: make([]byte, 32)})
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := get(); status.Code(err) != codes.Unavailable {
		t.Errorf("nobody listens: %v", err)
	}
	serve(t, path, echo)
	if err := get(); err != nil {
		t.Error(err)
	}
}

// TestDeathDuringCall: what the server did is not known, so the call is not made
// again.
func TestDeathDuringCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	calls := make(chan int, 1)
	go func() {
		n := 0
		defer func() { calls <- n }()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if body, err := readFrame(conn, nil, testLimit); err == nil && len(body) > 0 {
				n++
			}
			_ = conn.Close()
		}
	}()
	rpc := storepb.NewStoreClient(newClient(t, path))
	if _, err := rpc.Get(t.Context(), &storepb.GetRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	_ = l.Close()
	if n := <-calls; n != 1 {
		t.Errorf("the call was made %d times", n)
	}
}

func TestLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, func(r *storepb.GetRequest) (*storepb.GetReply, error) {
		return &storepb.GetReply{Statuses: make([]byte, r.GetSession().GetNumber())}, nil
	})
	rpc := storepb.NewStoreClient(newClient(t, path))
	_, err := rpc.Get(t.Context(), &storepb.GetRequest{Hashes: make([]byte, testLimit)})
	if err == nil {
		t.Error("a request over the limit was answered")
	}
	if _, err = rpc.Get(t.Context(), &storepb.GetRequest{Session: &storepb.Session{Number: testLimit}}); status.Code(err) != codes.Unavailable {
		t.Errorf("a reply over the limit: %v", err)
	}
	if _, err = rpc.Get(t.Context(), &storepb.GetRequest{Session: &storepb.Session{Number: testLimit - 100}}); err != nil {
		t.Error(err)
	}
}

// TestForeignPeer: one who speaks HTTP/2 is sent away.
func TestForeignPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, echo)
	for _, hello := range []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x01\x00\x00\x00\x00", "\x02\x00\x00\x00\x09x"} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(hello)); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil && !strings.Contains(err.Error(), "reset") || err == nil && (len(answer) < 5 || codes.Code(answer[4]) != codes.InvalidArgument) {
			t.Errorf("%q: answer %q, %v", hello, answer, err)
		}
		_ = conn.Close()
	}
}

func FuzzFrames(f *testing.F) {
	request, _ := appendRequest(nil, "/a/b", &storepb.GetRequest{Hashes: []byte("x")})
	f.Add(request)
	f.Add(appendError(nil, codes.Aborted, "text"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body, err := readFrame(bytes.NewReader(data), nil, 1<<16)
		if err != nil {
			return
		}
		if name, args, err := splitRequest(body); err == nil && 1+len(name)+len(args) != len(body) {
			t.Errorf("request of %d bytes into %d and %d", len(body), len(name), len(args))
		}
		_, _, _ = splitReply(body)
		server := NewServer(1 << 16)
		storepb.RegisterStoreServer(server, &service{get: echo})
		if out, err := server.answer(nil, body); err == nil {
			if _, err := readFrame(bytes.NewReader(out), nil, 1<<20); err != nil {
				t.Errorf("the answer is no frame: %v", err)
			}
		}
	})
}
