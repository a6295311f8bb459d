package shm

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Seals are what a file of ours has, and what a peer's needs at least in part:
// its size can't change and the seals can't either.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// allocateStep is how much is allocated between two looks at the context.
const allocateStep = 256 << 20

// Errors of a descriptor that came from a peer.
var (
	// ErrNotShared: the descriptor is no memory file.
	ErrNotShared = errors.New("no memory file")
	// ErrWrongSize: the file is not as long as was said.
	ErrWrongSize = errors.New("wrong size")
	// ErrNotSealed: the file could be shrunk under a mapping.
	ErrNotSealed = errors.New("not sealed against shrinking")
)

// Create makes a memory file of that size, every page allocated, sealed. The
// name is for /proc. The descriptor is close-on-exec.
func Create(ctx context.Context, name string, bytes int64) (fd int, err error) {
	if bytes <= 0 {
		return -1, fmt.Errorf("create memory file %s: %w: %d bytes", name, ErrWrongSize, bytes)
	}
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("create memory file %s: %w", name, err)
	}
	if err := allocate(ctx, fd, bytes); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("create memory file %s: %w", name, err)
	}
	return fd, nil
}

func allocate(ctx context.Context, fd int, bytes int64) error {
	if err := unix.Ftruncate(fd, bytes); err != nil {
		return fmt.Errorf("set size to %d bytes: %w", bytes, err)
	}
	// In steps: a large allocation in one call can't be interrupted.
	for at := int64(0); at < bytes; at += allocateStep {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := retry(func() error { return unix.Fallocate(fd, 0, at, min(allocateStep, bytes-at)) }); err != nil {
			return fmt.Errorf("allocate %d bytes, %d of them done: %w", bytes, at, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, Seals); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// IsWhole reports whether every page of a memory file is there, so that entering
// them in a page table takes no memory.
func IsWhole(fd int, bytes uint64) bool {
	var stat unix.Stat_t
	return unix.Fstat(fd, &stat) == nil && uint64(stat.Blocks)*512 >= bytes
}

// Check reports why a peer's descriptor can't be mapped safely.
func Check(fd int, bytes uint64) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("%w: %w", ErrNotShared, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: file mode %o", ErrNotShared, stat.Mode)
	}
	if stat.Size <= 0 || uint64(stat.Size) != bytes {
		return fmt.Errorf("%w: the file has %d bytes, %d were announced", ErrWrongSize, stat.Size, bytes)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("%w: it has no seals: %w", ErrNotShared, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("%w: seals %#x", ErrNotSealed, seals)
	}
	return nil
}
