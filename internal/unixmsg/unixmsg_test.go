package unixmsg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns a connected client and server.
func pair(t *testing.T) (client, server *Conn) {
	t.Helper()
	l := listen(t, filepath.Join(t.TempDir(), "s"), Options{})
	client, err := Dial(context.Background(), l.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func listen(t *testing.T, path string, opts Options) *Listener {
	t.Helper()
	l, err := Listen(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func memfd(t *testing.T, text string) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestDescriptorsComeWithTheirFrame(t *testing.T) {
	client, server := pair(t)
	// Three writes back to back, the reader far behind: it must find no
	// descriptor of a frame that it has not read.
	for i, fds := range [][]int{{memfd(t, "a"), memfd(t, "b")}, nil, {memfd(t, "c")}} {
		if err := client.WriteFDs(fmt.Appendf(nil, "frame%d", i), fds); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"ab", "", "c"} {
		got := make([]byte, 6)
		if _, err := io.ReadFull(server, got); err != nil || string(got) != fmt.Sprintf("frame%d", i) {
			t.Fatalf("frame %d: %q, %v", i, got, err)
		}
		fds, err := server.TakeFDs(len(want))
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		for j, fd := range fds {
			b := make([]byte, 1)
			if _, err := unix.Pread(fd, b, 0); err != nil || b[0] != want[j] {
				t.Errorf("frame %d descriptor %d: %q, %v", i, j, b, err)
			}
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("frame %d descriptor %d: not close-on-exec", i, j)
			}
			unix.Close(fd)
		}
	}
}

func TestWrongCountClosesDescriptors(t *testing.T) {
	client, server := pair(t)
	if err := client.WriteFDs([]byte("x"), []int{memfd(t, "a")}); err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	if _, err := server.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.TakeFDs(2); !errors.Is(err, ErrFDCount) {
		t.Fatalf("got %v, want ErrFDCount", err)
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func TestQueueIsBounded(t *testing.T) {
	client, server := pair(t)
	fd := memfd(t, "a")
	many := make([]int, MaxFDs)
	for i := range many {
		many[i] = fd
	}
	before := openFDs(t)
	for range 2 {
		if err := client.WriteFDs([]byte("x"), many); err != nil {
			t.Fatal(err)
		}
	}
	_, err := io.ReadFull(server, make([]byte, 2))
	if !errors.Is(err, ErrTooManyFDs) {
		t.Fatalf("got %v, want ErrTooManyFDs", err)
	}
	server.Close()
	if after := openFDs(t); after != before-1 { // the server's socket
		t.Errorf("%d descriptors open, %d before", after, before)
	}
	if err := client.WriteFDs([]byte("x"), append(many, fd)); !errors.Is(err, ErrTooManyFDs) {
		t.Errorf("got %v, want ErrTooManyFDs", err)
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestLargeWriteWithDescriptors(t *testing.T) {
	client, server := pair(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // larger than a socket buffer
	done := make(chan error, 1)
	go func() { done <- client.WriteFDs(sent, []int{0}) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(server, got); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Error("bytes differ")
	}
	fds, err := server.TakeFDs(1)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fds[0])
}

func TestEndOfStream(t *testing.T) {
	client, server := pair(t)
	client.Close()
	if _, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

func TestForeignPeerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := listen(t, path, Options{
		Allow:   func(p Peer) error { return fmt.Errorf("uid %d is foreign", p.UID) },
		Refusal: func(err error) []byte { return []byte(err.Error()) },
	})
	client, err := Dial(context.Background(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := l.Accept(); !errors.Is(err, ErrPeerRefused) {
		t.Fatalf("got %v, want ErrPeerRefused", err)
	}
	got, err := io.ReadAll(client)
	if err != nil || !strings.HasSuffix(string(got), "is foreign") {
		t.Errorf("the peer was told %q, %v", got, err)
	}
}

func TestForeignServerIsRefused(t *testing.T) {
	l := listen(t, filepath.Join(t.TempDir(), "s"), Options{})
	foreign := errors.New("foreign")
	if _, err := Dial(context.Background(), l.Path(), func(Peer) error { return foreign }); !errors.Is(err, foreign) {
		t.Errorf("got %v, want the check's error", err)
	}
}

func TestSameUserOrRoot(t *testing.T) {
	for uid, allowed := range map[int]bool{0: true, os.Geteuid(): true, os.Geteuid() + 4242: false} {
		if err := SameUserOrRoot(Peer{UID: uid}); (err == nil) != allowed {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

func TestPeerCredentials(t *testing.T) {
	_, server := pair(t)
	if p := server.Peer(); p.UID != os.Geteuid() || p.GID != os.Getegid() || p.PID != os.Getpid() {
		t.Errorf("got %+v", p)
	}
}

func TestLivePathIsNeverStolen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listen(t, path, Options{})
	if _, err := Listen(path, Options{}); !errors.Is(err, ErrTaken) {
		t.Errorf("our own listener: got %v, want ErrTaken", err)
	}

	// A server of another kind takes no lock.
	other := filepath.Join(t.TempDir(), "other")
	foreign, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if _, err := Listen(other, Options{}); !errors.Is(err, ErrTaken) {
		t.Errorf("another listener: got %v, want ErrTaken", err)
	}
	conn, err := net.Dial("unix", other)
	if err != nil {
		t.Fatalf("the live server is gone: %v", err)
	}
	conn.Close()
}

func TestDeadPathIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l := listen(t, path, Options{})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket file is left: %v", err)
	}
}

func TestCloseLeavesAnothersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := listen(t, path, Options{})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	foreign, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("another's socket file was removed: %v", err)
	}
}

func TestPathsThatAreRefused(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"directory open to all": {filepath.Join(open, "s"), ErrUnsafeDir},
		"no directory":          {filepath.Join(t.TempDir(), "none", "s"), os.ErrNotExist},
		"regular file":          {file, ErrTaken},
		"long path":             {"/" + strings.Repeat("x", MaxPathBytes), ErrPathTooLong},
	} {
		if _, err := Listen(c.path, Options{}); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the regular file was removed: %v", err)
	}
}
