package unixmsg

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// Inherit takes over a socket that already listens at path: the service
// manager's, which goes on listening when we end. It takes the lock of the path
// as Listen does, so that there is one server whoever bound the socket. The file
// is consumed, also on failure; the socket's file stays when the listener is
// closed.
func Inherit(file *os.File, path string, opts Options) (*Listener, error) {
	defer file.Close() // FileListener duplicates it
	if opts.Allow == nil {
		opts.Allow = SameUserOrRoot
	}
	if err := CheckDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("inherit %s: %w", path, err)
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("inherit %s: %w", path, err)
	}
	sock, ok := listener.(*net.UnixListener)
	if !ok || sock.Addr().String() != path {
		_ = listener.Close() // it is not ours to use
		return nil, fmt.Errorf("inherit %s: the socket that was passed listens at %s; ListenStream must name the runtime directory's socket",
			path, listener.Addr())
	}
	sock.SetUnlinkOnClose(false)
	lock, err := lockFile(path + ".lock")
	if err != nil {
		sock.Close()
		return nil, fmt.Errorf("inherit %s: %w", path, err)
	}
	return &Listener{sock: sock, opts: opts, path: path, lock: lock}, nil
}
