package zmqx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pebbe/zmq4"
)

// bindEndpoint binds a socket to ipc://PATH or to a tcp endpoint, of localhost to
// 127.0.0.1: libzmq resolves no names here. path and own are those of an ipc
// endpoint's file, for removeEndpoint.
func bindEndpoint(socket *zmq4.Socket, endpoint string, mode os.FileMode) (path string, own fileID, err error) {
	path, isPath := strings.CutPrefix(endpoint, "ipc://")
	if isPath {
		own, err = bindPath(socket, path, mode)
		return path, own, err
	}
	address := endpoint
	if port, ok := strings.CutPrefix(endpoint, "tcp://localhost:"); ok {
		address = "tcp://127.0.0.1:" + port
	}
	// With this set where the machine has no IPv6 addresses of IPv4 would fail.
	if err := socket.SetIpv6(strings.Contains(address, "[")); err != nil {
		return "", own, fmt.Errorf("zmqx: socket options: %w", err)
	}
	if err := socket.Bind(address); err != nil {
		return "", own, fmt.Errorf("zmqx: bind %s: %w", endpoint, err)
	}
	return "", own, nil
}

// bindPath gives a socket its place in the file system; see the package comment.
func bindPath(socket *zmq4.Socket, path string, mode os.FileMode) (own fileID, err error) {
	private, err := os.MkdirTemp(filepath.Dir(path), ".mz-*")
	if err != nil {
		return own, fmt.Errorf("zmqx: %w", err)
	}
	file := filepath.Join(private, "s")
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	if err := errors.Join(checkPath(path), checkPath(file)); err != nil {
		return own, err
	}
	if err := socket.Bind("ipc://" + file); err != nil {
		return own, fmt.Errorf("zmqx: bind beside %s: %w", path, err)
	}
	if err := os.Chmod(file, mode); err != nil {
		return own, fmt.Errorf("zmqx: %w", err)
	}
	if own, err = identify(file); err != nil {
		return own, fmt.Errorf("zmqx: %w", err)
	}
	return own, claim(file, path)
}

// removeEndpoint removes an ipc endpoint's file if it still is ours.
func removeEndpoint(path string, own fileID) error {
	if path == "" {
		return nil
	}
	return removeOwn(path, own)
}
