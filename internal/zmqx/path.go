package zmqx

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// maxPathBytes is what sockaddr_un holds beside the final zero.
const maxPathBytes = 107

// checkPath refuses what can't become a socket address.
func checkPath(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("zmqx: %w: %q is not absolute", ErrBadPath, path)
	}
	if len(path) > maxPathBytes {
		return fmt.Errorf("zmqx: %w: %q has %d bytes, at most %d fit", ErrBadPath, path, len(path), maxPathBytes)
	}
	return nil
}

// fileID names an inode, so that a path can be recognised as still ours.
type fileID struct{ dev, ino uint64 }

func identify(path string) (fileID, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return fileID{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, fmt.Errorf("no inode for %s", path)
	}
	return fileID{stat.Dev, stat.Ino}, nil
}

// liveness of a socket file.
type liveness int

const (
	gone  liveness = iota // nothing there
	stale                 // a socket nobody listens on
	live                  // someone listens, or may: we can't tell
)

// probe finds out whether a server listens at path. A server that is stopped or
// that has a full backlog counts as live, and so does one that we may not ask.
func probe(path string) (liveness, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return gone, nil
	case err != nil:
		return live, fmt.Errorf("zmqx: look at %s: %w", path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return live, fmt.Errorf("zmqx: %w: %s", ErrNotSocket, path)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	switch {
	case err == nil:
		_ = conn.Close() // nothing was said on it
		return live, nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return stale, nil
	case errors.Is(err, syscall.ENOENT):
		return gone, nil
	}
	return live, nil
}

// claimAttempts bounds the races that claim is ready to lose.
const claimAttempts = 4

// claim gives the socket file at from the name to, unless a live server has it.
// A stale file there is replaced.
func claim(from, to string) error {
	for range claimAttempts {
		err := os.Link(from, to)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("zmqx: name the socket: %w", err)
		}
		state, err := probe(to)
		if err != nil {
			return err
		}
		if state == live {
			return fmt.Errorf("zmqx: %w: %s", ErrAddressInUse, to)
		}
		if state == stale {
			if err := removeStale(to, from+".old"); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("zmqx: %w: %s changes hands", ErrAddressInUse, to)
}

// removeStale removes the stale socket at path by way of aside, a private name.
// Between the probe and now another server may have taken the path over; then
// what was moved is live and is put back.
func removeStale(path, aside string) error {
	if err := os.Rename(path, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("zmqx: remove stale socket: %w", err)
	}
	state, err := probe(aside)
	if err == nil && state == live {
		err = os.Link(aside, path)
	}
	return errors.Join(err, os.Remove(aside))
}

// removeOwn removes path if it still is the inode that we put there.
func removeOwn(path string, own fileID) error {
	id, err := identify(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && id != own {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}
