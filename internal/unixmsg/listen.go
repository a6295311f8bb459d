package unixmsg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxPathBytes is the longest path of a Unix socket.
const MaxPathBytes = 107

var (
	// ErrTaken: a live server listens at the path.
	ErrTaken = errors.New("socket path is taken by a live server")
	// ErrUnsafeDir: others than the user could put or replace a socket there.
	ErrUnsafeDir = errors.New("unsafe socket directory")
	// ErrPathTooLong: the kernel takes at most MaxPathBytes.
	ErrPathTooLong = errors.New("socket path too long")
	// ErrPeerRefused: the peer's credentials are not allowed.
	ErrPeerRefused = errors.New("peer refused")
)

// probeTimeout bounds the question whether a socket file has a server.
const probeTimeout = time.Second

// SameUserOrRoot allows peers of our own effective uid, and root.
func SameUserOrRoot(p Peer) error {
	if p.UID == 0 || p.UID == os.Geteuid() {
		return nil
	}
	return fmt.Errorf("%w: uid %d, want %d or root", ErrPeerRefused, p.UID, os.Geteuid())
}

// ServerAt allows, besides what SameUserOrRoot does, root to talk to a server of
// the user who owns the directory of path: whoever else serves there has been let
// in by that user.
func ServerAt(path string) func(Peer) error {
	return func(p Peer) error {
		err := SameUserOrRoot(p)
		if err == nil || os.Geteuid() != 0 {
			return err
		}
		if info, statErr := os.Stat(filepath.Dir(path)); statErr == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) == p.UID {
				return nil
			}
		}
		return err
	}
}

// Options of a listener.
type Options struct {
	// Allow says whether a peer may talk to us; nil is SameUserOrRoot.
	Allow func(Peer) error
	// Refusal, when not nil, makes the bytes that a refused peer is sent before
	// its connection is closed.
	Refusal func(error) []byte
	// Mode of the socket file; 0 is 0600.
	Mode fs.FileMode
}

// Listener accepts connections at a path.
type Listener struct {
	sock *net.UnixListener
	opts Options
	path string
	file fs.FileInfo // the socket file we made
	lock *os.File
}

// Listen binds path. The directory must be the user's (or
// root's) and writable by nobody else. A file left by a dead server is replaced;
// a live server's is ErrTaken.
//
// Two processes that find the same dead file would both replace it, so path is
// bound under a lock on path + ".lock", which is held for the listener's life
// and dies with the process.
func Listen(path string, opts Options) (*Listener, error) {
	if opts.Allow == nil {
		opts.Allow = SameUserOrRoot
	}
	if len(path) > MaxPathBytes {
		return nil, fmt.Errorf("listen: %w: %d bytes, at most %d: %s", ErrPathTooLong, len(path), MaxPathBytes, path)
	}
	if err := CheckDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	l, err := bind(path, opts, lock)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	return l, nil
}

func bind(path string, opts Options, lock *os.File) (*Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	sock, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	sock.SetUnlinkOnClose(false) // Close looks whose file it is first
	file, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, cmp.Or(opts.Mode, 0o600))
	}
	if err != nil {
		sock.Close()
		return nil, err
	}
	return &Listener{sock: sock, opts: opts, path: path, file: file, lock: lock}, nil
}

// lockFile takes the lock of a listener's path.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrTaken
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}

// removeStale unlinks a socket file that nobody listens at.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%w: the path is no socket but %s", ErrTaken, info.Mode().Type())
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	if err == nil {
		conn.Close()
		return ErrTaken
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		// A full backlog or a missing permission: somebody is there.
		return fmt.Errorf("%w: %w", ErrTaken, err)
	}
	return os.Remove(path)
}

// CheckDir reports a directory in which others could put a socket of their own.
func CheckDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is no directory", ErrUnsafeDir, dir)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to uid %d, want %d", ErrUnsafeDir, dir, stat.Uid, os.Geteuid())
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: %s has mode %04o, others may write to it", ErrUnsafeDir, dir, info.Mode().Perm())
	}
	return nil
}

// Accept waits for the next peer. A peer that is not allowed is closed and
// reported with ErrPeerRefused; the listener is good for the next one.
func (l *Listener) Accept() (*Conn, error) {
	sock, err := l.sock.AcceptUnix()
	if err != nil {
		return nil, err
	}
	conn, err := newConn(sock)
	if err != nil {
		_ = sock.Close() // the error that matters is err
		return nil, fmt.Errorf("%w: %w", ErrPeerRefused, err)
	}
	if err := l.opts.Allow(conn.peer); err != nil {
		if l.opts.Refusal != nil {
			// A fresh socket's buffer takes it whole; a peer can't hold us up.
			_ = conn.SetWriteDeadline(time.Now().Add(probeTimeout))
			_, _ = conn.Write(l.opts.Refusal(err)) // it is refused whether it hears of it or not
		}
		conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrPeerRefused, err)
	}
	return conn, nil
}

// SetDeadline bounds Accept, which then returns an error that is
// os.ErrDeadlineExceeded; the zero time takes the bound away.
func (l *Listener) SetDeadline(t time.Time) error { return l.sock.SetDeadline(t) }

// Path returns the bound path.
func (l *Listener) Path() string { return l.path }

// Close stops listening and removes the socket file if it is still ours.
// Accept returns net.ErrClosed.
func (l *Listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
		_ = os.Remove(l.path) // a leftover is replaced by the next server
	}
	err := l.sock.Close()
	l.lock.Close()
	return err
}

// Dial connects to a server at path and checks whose it is; a nil allow is
// ServerAt(path).
func Dial(ctx context.Context, path string, allow func(Peer) error) (*Conn, error) {
	if allow == nil {
		allow = ServerAt(path)
	}
	var d net.Dialer
	sock, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	unixSock, ok := sock.(*net.UnixConn)
	if !ok {
		sock.Close()
		return nil, fmt.Errorf("dial %s: BUG: a %T for a Unix socket", path, sock)
	}
	conn, err := newConn(unixSock)
	if err == nil {
		if err = allow(conn.peer); err == nil {
			return conn, nil
		}
	}
	sock.Close()
	return nil, fmt.Errorf("dial %s: %w", path, err)
}
