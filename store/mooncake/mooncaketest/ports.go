package mooncaketest

import (
	"fmt"
	"syscall"
)

// heldPorts are ports of loopback that the kernel gives to nobody else, whoever of a
// test's servers is dead at the moment. A server that reuses addresses, as Mooncake's
// do, may listen there.
type heldPorts struct {
	numbers []int
	sockets []int
}

// holdPorts finds n free ports. They are free until close.
func holdPorts(n int) (*heldPorts, error) {
	h := &heldPorts{}
	for range n {
		if err := h.hold(); err != nil {
			h.close()
			return nil, fmt.Errorf("hold a port: %w", err)
		}
	}
	return h, nil
}

func (h *heldPorts) hold() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	h.sockets = append(h.sockets, fd)
	if err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		return err
	}
	at, ok := bound.(*syscall.SockaddrInet4)
	if !ok {
		return syscall.EAFNOSUPPORT
	}
	h.numbers = append(h.numbers, at.Port)
	return nil
}

func (h *heldPorts) close() {
	for _, fd := range h.sockets {
		_ = syscall.Close(fd) // nothing was sent
	}
	h.sockets = nil
}
