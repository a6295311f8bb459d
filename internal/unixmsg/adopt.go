package unixmsg

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotStream: a descriptor is no Unix stream socket.
var ErrNotStream = errors.New("not a Unix stream socket")

// Adopt makes a connection of a descriptor that a peer sent. The descriptor is
// consumed, also on failure. Who is at the other end is whoever sent it says.
func Adopt(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "adopted")
	if file == nil {
		return nil, fmt.Errorf("adopt %d: %w", fd, ErrNotStream)
	}
	defer file.Close() // FileConn duplicates it
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return nil, fmt.Errorf("adopt %d: %w", fd, ErrNotStream)
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("adopt %d: %w: %w", fd, ErrNotStream, err)
	}
	sock, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close() // it is of no use here
		return nil, fmt.Errorf("adopt %d: %w", fd, ErrNotStream)
	}
	return sock, nil
}
