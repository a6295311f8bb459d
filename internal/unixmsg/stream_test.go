package unixmsg

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAdoptStream(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := AdoptStream(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := AdoptStream(pair[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Write([]byte("hello")); err != nil {
		t.Error(err)
	}
	_ = ours.Close()
	if got, err := io.ReadAll(theirs); string(got) != "hello" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	_ = theirs.Close()
	for _, fd := range pair { // nothing of them is left open
		if err := syscall.Close(fd); !errors.Is(err, syscall.EBADF) {
			t.Errorf("descriptor %d was left open: %v", fd, err)
		}
	}
}

func TestAdoptStreamRefusesAnythingElse(t *testing.T) {
	socket := func(domain, kind int) int {
		fd, err := syscall.Socket(domain, kind, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	file, err := syscall.Open(filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for name, fd := range map[string]int{
		"file": file, "datagrams": socket(syscall.AF_UNIX, syscall.SOCK_DGRAM), "packets": socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET), "TCP": socket(syscall.AF_INET, syscall.SOCK_STREAM), "none": -1,
	} {
		if _, err := AdoptStream(fd); !errors.Is(err, ErrNotStream) {
			t.Errorf("%s: got %v, want %v", name, err, ErrNotStream)
		}
		if fd >= 0 && !errors.Is(syscall.Close(fd), syscall.EBADF) {
			t.Errorf("%s: the descriptor was left open", name)
		}
	}
}

// streamPair is two streams, and the sockets that they were made of do not block.
func streamPair(t *testing.T) (a, b *Stream) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range []**Stream{&a, &b} {
		if *s, err = AdoptStream(pair[i]); err != nil {
			t.Fatal(err)
		}
		stream := *s
		t.Cleanup(func() { _ = stream.Close() })
	}
	return a, b
}

// Whoever waits for a peer that says or reads nothing is woken by Close, and the
// descriptor is not another's before it has left.
func TestCloseEndsWhatWaits(t *testing.T) {
	a, b := streamPair(t)
	filled, ended := make(chan struct{}), make(chan error, 2)
	go func() {
		close(filled)
		_, err := a.Write(make([]byte, 64<<20)) // no buffer holds it
		ended <- err
	}()
	<-filled
	go func() {
		_, err := a.Read(make([]byte, 1))
		ended <- err
	}()
	if _, err := io.ReadFull(b, make([]byte, 1)); err != nil { // the write has begun
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("no error after Close")
		}
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read after Close: %v", err)
	}
	if _, err := a.Write([]byte{1}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestAStreamOfAPeerThatIsGone(t *testing.T) {
	a, b := streamPair(t)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read: %v, want %v", err, io.EOF)
	}
	if _, err := a.Write([]byte{1}); !errors.Is(err, syscall.EPIPE) { // and no signal
		t.Errorf("write: %v, want %v", err, syscall.EPIPE)
	}
}
