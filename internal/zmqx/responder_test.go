package zmqx

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"go.uber.org/goleak"
)

// patience bounds what a correct run never waits for.
const patience = 30 * time.Second

func newTransport(t *testing.T) *Transport {
	t.Helper()
	transport, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t)
	})
	return transport
}

// shortDir is a directory whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "zx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func listen(t *testing.T, transport *Transport, path string, handler Handler) *Responder {
	t.Helper()
	r, err := transport.Listen(path, handler)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func echo(frames [][]byte) [][]byte { return frames }

func dial(t *testing.T, transport *Transport, path string) *Client {
	t.Helper()
	c, err := transport.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAnswersREQ(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	listen(t, transport, path, func(frames [][]byte) [][]byte {
		return [][]byte{bytes.Join(frames, []byte("|"))}
	})
	req, err := transport.newSocket(zmq4.REQ)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Close()
	if err := req.Connect("ipc://" + path); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := req.SendMessage("lookup", "", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		got, err := req.RecvMessage(0)
		if want := fmt.Sprintf("lookup||%d", i); err != nil || len(got) != 1 || got[0] != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
}

func TestManyClients(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	r := listen(t, transport, path, echo)
	const clients, questions = 64, 20
	var all sync.WaitGroup
	for i := range clients {
		c := dial(t, transport, path)
		all.Go(func() {
			for j := range questions {
				question := fmt.Appendf(nil, "%d/%d", i, j)
				reply, err := c.Request(patience, question)
				if err != nil || len(reply) != 1 || !bytes.Equal(reply[0], question) {
					t.Errorf("asked %q, got %q, %v", question, reply, err)
					return
				}
			}
		})
	}
	all.Wait()
	if got := r.Stats(); got.Requests != clients*questions || got.Malformed != 0 {
		t.Errorf("stats are %+v", got)
	}
}

func TestMalformedIsCountedAndDropped(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	r := listen(t, transport, path, echo)
	c := dial(t, transport, path)
	tooMany := []any{""}
	for range MaxFrames + 1 {
		tooMany = append(tooMany, "x")
	}
	for _, message := range [][]any{
		{"no delimiter"},
		{"no delimiter", "lookup"},
		{""}, // a delimiter and nothing behind it
		tooMany,
	} {
		if _, err := c.socket.SendMessage(message...); err != nil {
			t.Fatal(err)
		}
	}
	// Messages of one client are handled in order: this answer is the first.
	reply, err := c.Request(patience, []byte("fine"))
	if err != nil || string(reply[0]) != "fine" {
		t.Fatalf("got %q, %v", reply, err)
	}
	if got := r.Stats(); got.Malformed != 4 || got.Requests != 1 {
		t.Errorf("stats are %+v", got)
	}
	exact := bytes.Split(bytes.Repeat([]byte("x,"), MaxFrames-1), []byte(","))
	if reply, err := c.Request(patience, exact...); err != nil || len(reply) != MaxFrames {
		t.Errorf("%d frames: got %q, %v", MaxFrames, reply, err)
	}
}

func TestOversizedFrameCostsTheConnection(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	r := listen(t, transport, path, echo)
	hostile, good := dial(t, transport, path), dial(t, transport, path)
	if _, err := hostile.socket.SendMessage("", make([]byte, MaxFrameBytes+1)); err != nil {
		t.Fatal(err)
	}
	reply, err := good.Request(patience, []byte("alive"))
	if err != nil || string(reply[0]) != "alive" {
		t.Fatalf("got %q, %v", reply, err)
	}
	if got := r.Stats(); got.Requests != 1 {
		t.Errorf("stats are %+v: the oversized frame was taken", got)
	}
}

func TestTakenPathIsNotStolen(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	first := listen(t, transport, path, func([][]byte) [][]byte { return [][]byte{[]byte("first")} })
	if _, err := transport.Listen(path, echo); !errors.Is(err, ErrAddressInUse) {
		t.Fatalf("got %v, want ErrAddressInUse", err)
	}
	reply, err := dial(t, transport, path).Request(patience, []byte("who?"))
	if err != nil || string(reply[0]) != "first" {
		t.Fatalf("got %q, %v", reply, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file stays after Close: %v", err)
	}
	listen(t, transport, path, echo)
}

func TestStalePathIsReplaced(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	listen(t, transport, path, echo)
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v, want 0600", info.Mode(), err)
	}
	if _, err := dial(t, transport, path).Request(patience, []byte("x")); err != nil {
		t.Error(err)
	}
}

func TestForeignFileIsNotRemoved(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := transport.Listen(path, echo); !errors.Is(err, ErrNotSocket) {
		t.Errorf("got %v, want ErrNotSocket", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "precious" {
		t.Errorf("file is %q, %v", got, err)
	}
}

func TestCloseLeavesASuccessorsPath(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	first := listen(t, transport, path, echo)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	listen(t, transport, path, echo)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the successor's socket file is gone: %v", err)
	}
}

// A server that takes the path over between the probe and the removal gets it
// back.
func TestRemoveStalePutsALiveSocketBack(t *testing.T) {
	transport := newTransport(t)
	dir := shortDir(t)
	path := filepath.Join(dir, "lookup")
	listen(t, transport, path, echo)
	if err := removeStale(path, filepath.Join(dir, "aside")); err != nil {
		t.Fatal(err)
	}
	if state, err := probe(path); state != live || err != nil {
		t.Errorf("the path is %v, %v, want live", state, err)
	}
}

func TestRacingListenersOneWins(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	const racers = 8
	won := make(chan *Responder, racers)
	var all sync.WaitGroup
	for range racers {
		all.Go(func() {
			r, err := transport.Listen(path, echo)
			if err == nil {
				won <- r
			} else if !errors.Is(err, ErrAddressInUse) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(won)
	winners := 0
	for r := range won {
		winners++
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if winners != 1 {
		t.Errorf("%d responders have the path, want 1", winners)
	}
}

func TestPathsRefused(t *testing.T) {
	transport := newTransport(t)
	if _, err := transport.Listen("/tmp/"+strings.Repeat("x", maxPathBytes), echo); !errors.Is(err, ErrBadPath) {
		t.Errorf("got %v, want ErrBadPath", err)
	}
	if _, err := transport.Listen("relative", echo); !errors.Is(err, ErrBadPath) {
		t.Errorf("got %v, want ErrBadPath", err)
	}
	if _, err := transport.Listen(filepath.Join(shortDir(t), "none", "lookup"), echo); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
}

func TestCloseTwiceAndUnderLoad(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	handling, release := make(chan struct{}), make(chan struct{})
	r := listen(t, transport, path, func(frames [][]byte) [][]byte {
		close(handling)
		<-release
		return frames
	})
	c := dial(t, transport, path)
	if _, err := c.socket.SendMessage("", "x"); err != nil {
		t.Fatal(err)
	}
	<-handling
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- r.Close() }()
	}
	select {
	case <-closed:
		t.Error("Close did not wait for the handler")
	default:
	}
	close(release)
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
}

func TestClientTimesOut(t *testing.T) {
	transport := newTransport(t)
	path := filepath.Join(shortDir(t), "lookup")
	listen(t, transport, path, func([][]byte) [][]byte { return nil })
	if _, err := dial(t, transport, path).Request(time.Millisecond, []byte("x")); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", err)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	transport, err := New()
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "zx")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "lookup")
	r, err := transport.Listen(path, func([][]byte) [][]byte { return [][]byte{{0, 0, 0, 0}} })
	if err != nil {
		b.Fatal(err)
	}
	c, err := transport.Dial(path)
	if err != nil {
		b.Fatal(err)
	}
	blob := make([]byte, 32*1024)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Request(patience, []byte("lookup"), blob); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(c.Close(), r.Close(), transport.Close()); err != nil {
		b.Fatal(err)
	}
}
