package sdnotify

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// manager is a stand-in for systemd's end of the notification socket.
func manager(t *testing.T) (*net.UnixConn, *Notifier) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", "")
	_ = os.Unsetenv("WATCHDOG_PID")
	return conn, FromEnvironment(slog.New(slog.DiscardHandler))
}

func receive(t *testing.T, conn *net.UnixConn) (string, []int) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	body, control := make([]byte, 4096), make([]byte, 256)
	n, nc, _, _, err := conn.ReadMsgUnix(body, control)
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(control[:nc])
	if err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, got...)
	}
	return string(body[:n]), fds
}

func TestMessages(t *testing.T) {
	conn, n := manager(t)
	if n.Watchdog() != 3*time.Second {
		t.Errorf("watchdog of %s, want 3s", n.Watchdog())
	}
	for _, c := range []struct {
		send func()
		want string
	}{
		{func() { n.Ready("serves 4GiB") }, "READY=1\nSTATUS=serves 4GiB"},
		{func() { n.Status("one\nREADY=1") }, "STATUS=one READY=1"},
		{func() { n.Stopping("no engine") }, "STOPPING=1\nSTATUS=no engine"},
		{func() { n.Extend(2 * time.Second) }, "EXTEND_TIMEOUT_USEC=2000000"},
		{n.Alive, "WATCHDOG=1"},
		{func() { n.Drop("segment-1") }, "FDSTOREREMOVE=1\nFDNAME=segment-1"},
	} {
		c.send()
		if got, _ := receive(t, conn); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	n.Reloading()
	if got, _ := receive(t, conn); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") || strings.HasSuffix(got, "=0") {
		t.Errorf("reloading: %q", got)
	}
}

func TestADescriptorIsKept(t *testing.T) {
	conn, n := manager(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	n.Keep("segment-1", int(write.Fd()))
	write.Close()
	message, fds := receive(t, conn)
	if message != "FDSTORE=1\nFDNAME=segment-1" || len(fds) != 1 {
		t.Fatalf("%q with %d descriptors", message, len(fds))
	}
	kept := os.NewFile(uintptr(fds[0]), "kept")
	if _, err := io.WriteString(kept, "x"); err != nil {
		t.Errorf("the descriptor does not work: %v", err)
	}
	kept.Close()
	if got, err := io.ReadAll(read); err != nil || string(got) != "x" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestAManagerThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	_, n := manager(t)
	for range 4096 { // far beyond what a socket queues
		n.Status(strings.Repeat("x", 512))
		if n.lost.Load() {
			return
		}
	}
	t.Error("nothing was lost: the socket's queue has no end?")
}

func TestNobodyIsThere(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n := FromEnvironment(slog.New(slog.DiscardHandler))
	n.Ready("")
	n.Keep("x", 0)
	if n.lost.Load() || n.Watchdog() != 0 {
		t.Error("a process without a manager tried to speak to one")
	}
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "3")
	if names := Inherit().Close(); names != nil {
		t.Errorf("took another process's descriptors %v", names)
	}
}
