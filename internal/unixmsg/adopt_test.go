package unixmsg

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAdopt(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := Adopt(pair[0])
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := Adopt(pair[1])
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

func TestAdoptRefusesAnythingElse(t *testing.T) {
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
		"file": file, "datagrams": socket(syscall.AF_UNIX, syscall.SOCK_DGRAM), "TCP": socket(syscall.AF_INET, syscall.SOCK_STREAM), "none": -1,
	} {
		if _, err := Adopt(fd); !errors.Is(err, ErrNotStream) {
			t.Errorf("%s: got %v, want %v", name, err, ErrNotStream)
		}
		if fd >= 0 && !errors.Is(syscall.Close(fd), syscall.EBADF) {
			t.Errorf("%s: the descriptor was left open", name)
		}
	}
}
