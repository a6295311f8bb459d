package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/lookupd"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// ErrAlreadyRunning: another daemon of this kind has the runtime directory.
var ErrAlreadyRunning = errors.New("already running")

// runtimeDir makes the configured directory, or the default one, and returns it.
func runtimeDir(configured string) (string, error) {
	dir := configured
	if dir == "" {
		dir = config.DefaultRuntimeDir(nil, os.Geteuid())
	}
	return dir, config.EnsureRuntimeDir(dir)
}

// listenSessions binds a daemon's session socket, or takes the one that the
// service manager listens at.
func listenSessions(dir, name string, common *config.Common, sup *supervision) (l *unixmsg.Listener, err error) {
	path, opts := filepath.Join(dir, name), sessionOptions(common)
	if file := sup.sessionSocket(); file != nil {
		l, err = unixmsg.Inherit(file, path, opts)
	} else {
		l, err = unixmsg.Listen(path, opts)
	}
	if errors.Is(err, unixmsg.ErrTaken) {
		return nil, fmt.Errorf("%w: another daemon serves %s", ErrAlreadyRunning, path)
	}
	return l, err
}

// refusal tells a peer of another user why it is sent away.
func refusal(err error) []byte {
	frame, err := connector.AppendFrame(nil, &connector.Error{Type: connector.TypeError, Code: connector.CodeNotAllowed, Message: err.Error()})
	if err != nil {
		return nil
	}
	return frame
}

// lookupdSessions is a session socket as lookupd takes it.
type lookupdSessions struct {
	*unixmsg.Listener
	accept func() (*unixmsg.Conn, error)
}

// Accept implements lookupd.Acceptor.
func (l lookupdSessions) Accept() (lookupd.Conn, error) {
	conn, err := l.accept()
	if err != nil {
		return nil, err // not a nil *Conn in an interface
	}
	return conn, nil
}

// workerSessions is a session socket as worker takes it.
func workerSessions(accept func() (*unixmsg.Conn, error)) func() (worker.Conn, error) {
	return func() (worker.Conn, error) {
		conn, err := accept()
		if err != nil {
			return nil, err
		}
		return untilPeerEnds(conn), nil
	}
}

// lookupSockets binds lookup sockets.
func lookupSockets(transport *zmqx.Transport) lookupd.ListenFunc {
	return func(path string, handle func([][]byte) [][]byte) (lookupd.Endpoint, error) {
		r, err := transport.Listen(path, handle)
		switch {
		case err == nil:
			return r, nil
		case errors.Is(err, zmqx.ErrAddressInUse), errors.Is(err, zmqx.ErrNotSocket):
			return nil, fmt.Errorf("%w: %w", lookupd.ErrPathTaken, err)
		case errors.Is(err, zmqx.ErrBadPath):
			return nil, fmt.Errorf("%w: %w", lookupd.ErrBadPath, err)
		}
		return nil, err
	}
}

// adoptChannel makes a lookup channel of an engine's descriptor.
func adoptChannel(fd int) (lookupd.Channel, error) {
	stream, err := unixmsg.AdoptStream(fd)
	if err != nil {
		return nil, err // not a nil *Stream in an interface
	}
	return stream, nil
}

// ownListener is a Unix socket that takes only peers of our own user, and root.
type ownListener struct {
	*net.UnixListener
	path string
	file os.FileInfo
	log  *slog.Logger
}

// listenOwn binds path with mode 0600. What stands there is removed: the caller
// holds the lock of the directory's daemon.
func listenOwn(path string, log *slog.Logger) (*ownListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen: %w", err)
	}
	sock, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	sock.SetUnlinkOnClose(false) // Close looks whose file it is first
	l := &ownListener{UnixListener: sock, path: path, log: log}
	if l.file, err = os.Lstat(path); err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), sock.Close())
	}
	return l, nil
}

// Accept implements net.Listener.
func (l *ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err = checkPeer(conn, unixmsg.SameUserOrRoot); err == nil {
			return conn, nil
		}
		l.log.Warn("connection refused", "socket", l.path, "error", err)
		_ = conn.Close() // nothing was said on it
	}
}

// Close implements net.Listener.
func (l *ownListener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
		_ = os.Remove(l.path) // a leftover is replaced by the next daemon
	}
	return l.UnixListener.Close()
}

// dialOwn connects to a Unix socket of our own user, or root's; as root, of the
// directory's owner.
func dialOwn(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(conn, unixmsg.ServerAt(path)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// checkPeer checks a peer's credentials.
func checkPeer(conn net.Conn, allow func(unixmsg.Peer) error) error {
	sock, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("BUG: a %T for a Unix socket", conn)
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return fmt.Errorf("peer credentials: %w", errors.Join(err, credErr))
	}
	return allow(unixmsg.Peer{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid)})
}
