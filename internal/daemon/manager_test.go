package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// asDaemon is set in the environment of a process of this test binary that is to
// be a daemon: lookupd, worker or loader, with the runtime directory behind a
// colon, and the store's size in MiB or the loader's number behind another.
const asDaemon = "MOONCAKE_SIDECAR_TEST_DAEMON"

// runAsDaemon is the whole life of such a process.
func runAsDaemon(what string) int {
	name, dir, _ := strings.Cut(what, ":")
	dir, number, _ := strings.Cut(dir, ":")
	n, _ := strconv.Atoi(number) // 0 if there is none
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var err error
	switch name {
	case "lookupd", "lookupd-with-disk", "lookupd-over-cluster":
		cfg := &config.LookupdConfig{StoreBytes: config.Size(cmp.Or(n, 16) << 20)}
		cfg.RuntimeDir = dir
		switch name {
		case "lookupd-over-cluster":
			cfg.Store, cfg.StorePython = config.StoreMooncake, os.Getenv("MOONCAKE_SIDECAR_PYTHON")
			cfg.Reset = os.Getenv(spawnedReset)
		case "lookupd-with-disk":
			cfg.DiskDir = filepath.Dir(dir)
		}
		cfg.SetDefaults(os.DirFS("/"))
		err = RunLookupd(context.Background(), cfg, Control{}, log)
	case "worker", "gpu-worker":
		cfg := &config.WorkerConfig{Device: fmt.Sprintf("%s-%d", map[string]string{"worker": kindHost, "gpu-worker": kindCUDA}[name], n)}
		cfg.RuntimeDir = dir
		cfg.SetDefaults()
		err = RunWorker(context.Background(), cfg, Control{}, log)
	case "loader":
		return runLoader(dir, n)
	}
	if err != nil {
		log.Error("ended", "error", err)
		return 1
	}
	return 0
}

// serviceManager is a stand-in for systemd: it listens at the session socket,
// starts the daemon, hears its messages and keeps its descriptors.
type serviceManager struct {
	t      *testing.T
	what   string
	notify *net.UnixConn
	path   string
	socket *os.File
	kept   map[string]*os.File
	said   []string
	daemon *exec.Cmd
}

func manage(t *testing.T, what, dir, socket string) *serviceManager {
	t.Helper()
	if err := config.EnsureRuntimeDir(dir); err != nil {
		t.Fatal(err)
	}
	m := &serviceManager{t: t, what: what + ":" + dir, path: filepath.Join(dir, "notify"), kept: map[string]*os.File{}}
	var err error
	if m.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socket), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	if m.socket, err = listener.File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.kill()
		m.notify.Close()
		m.socket.Close()
		for _, file := range m.kept {
			file.Close()
		}
	})
	return m
}

// start runs the daemon with the socket and whatever is kept.
func (m *serviceManager) start(watchdog time.Duration) {
	m.t.Helper()
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	// The shell becomes the daemon, so that its number is known beforehand.
	m.daemon = exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0"`, self)
	names := []string{"session"}
	m.daemon.ExtraFiles = []*os.File{m.socket}
	for name, file := range m.kept {
		names = append(names, name)
		m.daemon.ExtraFiles = append(m.daemon.ExtraFiles, file)
	}
	m.daemon.Env = append(os.Environ(), asDaemon+"="+m.what, "NOTIFY_SOCKET="+m.path,
		fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	if watchdog > 0 {
		m.daemon.Env = append(m.daemon.Env, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	}
	m.daemon.Stderr = os.Stderr
	m.said = nil
	if err := m.daemon.Start(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *serviceManager) kill() {
	if m.daemon != nil {
		_ = m.daemon.Process.Kill()
		_ = m.daemon.Wait()
		m.daemon = nil
	}
}

// hear reads messages until one contains what is wanted.
func (m *serviceManager) hear(wanted string) string {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		message, err := m.next(deadline)
		if err != nil {
			m.t.Fatalf("no %q came: %v; said was %q", wanted, err, m.said)
		}
		if strings.Contains(message, wanted) {
			return message
		}
	}
}

// next reads a message and keeps the descriptor that came with it.
func (m *serviceManager) next(deadline time.Time) (string, error) {
	m.t.Helper()
	if err := m.notify.SetReadDeadline(deadline); err != nil {
		m.t.Fatal(err)
	}
	body, control := make([]byte, 4096), make([]byte, 256)
	n, nc, _, _, err := m.notify.ReadMsgUnix(body, control)
	if err != nil {
		return "", err
	}
	message := string(body[:n])
	m.said = append(m.said, message)
	_, name, _ := strings.Cut(message, "FDNAME=")
	name, _, _ = strings.Cut(name, "\n")
	switch {
	case strings.HasPrefix(message, "FDSTOREREMOVE=1"):
		delete(m.kept, name)
	case strings.HasPrefix(message, "FDSTORE=1"):
		messages, err := unix.ParseSocketControlMessage(control[:nc])
		if err != nil || len(messages) != 1 {
			m.t.Fatalf("%q came with %d control messages, %v", message, len(messages), err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			m.t.Fatalf("%q came with %d descriptors, %v", message, len(fds), err)
		}
		if _, known := m.kept[name]; known {
			_ = unix.Close(fds[0]) // systemd keeps no descriptor twice either
		} else {
			m.kept[name] = os.NewFile(uintptr(fds[0]), name)
		}
	}
	return message, nil
}

func TestTheServiceManagerKeepsTheSegment(t *testing.T) {
	dir := shortDir(t)
	m := manage(t, "lookupd", dir, config.LookupdSocket)
	m.start(0)
	m.hear("READY=1")
	if len(m.kept) != 1 {
		t.Fatalf("ready with %d descriptors kept; said was %q", len(m.kept), m.said)
	}
	blob := []byte("0123456789abcdefFEDCBA9876543210")
	t.Run("worker", func(t *testing.T) { // its cleanup ends the only worker
		put(t, readyStore(t, dir), blob)
	})
	m.kill() // nobody but the manager has the segment now

	// What can't be used is to be forgotten: no segment, the beginning of one, and
	// one that could be cut short under us, under a name that is not its own.
	m.kept["segment-0123"], m.kept["segment-4567"], m.kept["segment-89ab"] = m.socket, memoryFile(t, 64), unsealedSegment(t)
	m.start(0)
	m.hear("READY=1")
	if len(m.kept) != 1 {
		t.Errorf("kept are %v, want the one segment; said was %q", m.kept, m.said)
	}
	path := filepath.Join(dir, "lookup")
	engine(t, dir, path)
	if got := hit(t, path, blob); got != 32 {
		t.Errorf("after a restart without workers %d tokens are hit, want 32", got)
	}
}

// memoryFile is a file of that size, all zero.
func memoryFile(t *testing.T, bytes int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { _ = file.Close() })
	if err := file.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	return file
}

// unsealedSegment has all that a segment has but the seals.
func unsealedSegment(t *testing.T) *os.File {
	t.Helper()
	layout, err := embedded.NewLayout([16]byte{0x89}, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	file := memoryFile(t, int64(layout.FileBytes))
	memory := unsealed(make([]byte, layout.FileBytes))
	if _, err := embedded.Create(memory, layout, embedded.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(memory, 0); err != nil {
		t.Fatal(err)
	}
	return file
}

type unsealed []byte

func (u unsealed) Bytes() []byte           { return u }
func (u unsealed) Words() []atomic.Uint64  { return shm.Words(u) }
func (unsealed) Prepare(_, _ uint64) error { return nil }

func TestWatchdogIsFedByTheLoops(t *testing.T) {
	for _, c := range []struct{ what, socket string }{{"lookupd", config.LookupdSocket}, {"worker", config.WorkerSocket("host-0")}} {
		t.Run(c.what, func(t *testing.T) {
			m := manage(t, c.what, shortDir(t), c.socket)
			m.start(200 * time.Millisecond)
			m.hear("READY=1")
			for range 3 {
				m.hear("WATCHDOG=1")
			}
		})
	}
}
