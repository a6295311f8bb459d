package unixmsg

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// passed is a socket as a service manager hands it over.
func passed(t *testing.T, path string) *os.File {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestInheritedSocketServesAndStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	file := passed(t, path)
	early, err := net.Dial("unix", path) // waits until somebody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	l, err := Inherit(file, path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if conn.PeerPID() != os.Getpid() {
		t.Errorf("the peer is %+v", conn.Peer())
	}
	conn.Close()
	if _, err := Listen(path, Options{}); !errors.Is(err, ErrTaken) {
		t.Errorf("a second server: %v, want %v", err, ErrTaken)
	}
	l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the service manager's socket file has gone: %v", err)
	}
}

func TestInheritRefusesAnotherSocket(t *testing.T) {
	dir := t.TempDir()
	if _, err := Inherit(passed(t, filepath.Join(dir, "a")), filepath.Join(dir, "b"), Options{}); err == nil {
		t.Error("a socket of another path was taken")
	}
	pipe, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	write.Close()
	if _, err := Inherit(pipe, filepath.Join(dir, "b"), Options{}); err == nil {
		t.Error("a pipe was taken for a socket")
	}
}

func TestOwnGroupToo(t *testing.T) {
	foreign := os.Geteuid() + 1
	for _, c := range []struct {
		peer    Peer
		allowed bool
	}{
		{Peer{UID: os.Geteuid()}, true},
		{Peer{UID: 0}, true},
		{Peer{UID: foreign, GID: os.Getegid()}, true},
		{Peer{UID: foreign, GID: os.Getegid() + 1, Groups: []int{os.Getegid() + 2, os.Getegid()}}, true},
		{Peer{UID: foreign, GID: os.Getegid() + 1, Groups: []int{os.Getegid() + 2}}, false},
	} {
		if err := OwnGroupToo(c.peer); (err == nil) != c.allowed {
			t.Errorf("%+v: %v", c.peer, err)
		}
	}
}

func TestPeerGroupsAreTheKernels(t *testing.T) {
	_, server := pair(t)
	want, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(slices.Values(server.Peer().Groups))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
}

func TestRootTalksToTheDirectorysOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root talks to other users' servers")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	allow := ServerAt(filepath.Join(dir, "s"))
	for uid, allowed := range map[int]bool{0: true, 4711: true, 4712: false} {
		if err := allow(Peer{UID: uid}); (err == nil) != allowed {
			t.Errorf("a server of user %d: %v", uid, err)
		}
	}
}
