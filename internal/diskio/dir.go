package diskio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// ErrInUse: another process has the data file open.
var ErrInUse = errors.New("in use by another process")

// Dir is a directory of a file system.
type Dir struct{ path string }

var _ disk.Dir = Dir{}

// New returns the directory at an absolute path. Nothing is done to it yet.
func New(path string) Dir { return Dir{path} }

// OpenData implements disk.Dir. It makes the directory, too, if its parent is
// there; one that is there must be ours (ErrNotOurs).
func (d Dir) OpenData(name string) (disk.File, error) {
	if err := d.claim(); err != nil {
		return nil, err
	}
	path := filepath.Join(d.path, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_DIRECT|unix.O_NOFOLLOW, 0o600)
	direct := err == nil
	if errors.Is(err, syscall.EINVAL) { // no O_DIRECT here
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	file := &file{f: f}
	file.cached.Store(!direct)
	return file, nil
}

// Buffer implements disk.Dir: memory that begins on a page.
func (d Dir) Buffer(bytes int) []byte {
	b := make([]byte, bytes+disk.PageBytes)
	skip := (disk.PageBytes - addressOf(b)%disk.PageBytes) % disk.PageBytes
	return b[skip : skip+bytes : skip+bytes]
}

// file is the data file.
type file struct {
	f *os.File
	// cached: reads and writes go through the page cache.
	cached atomic.Bool
}

func (f *file) ReadAt(p []byte, at int64) (int, error) {
	n, err := f.f.ReadAt(p, at)
	f.forget(at, n)
	return n, err
}

func (f *file) WriteAt(p []byte, at int64) (n int, err error) {
	behindReads(func() {
		n, err = f.f.WriteAt(p, at)
		if f.cached.Load() && n > 0 {
			// Only what was written back can be forgotten.
			_ = unix.SyncFileRange(int(f.f.Fd()), at, int64(n),
				unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER) // else it stays cached
			f.forget(at, n)
		}
	})
	return n, err
}

func (f *file) forget(at int64, n int) {
	if f.cached.Load() && n > 0 {
		_ = unix.Fadvise(int(f.f.Fd()), at, int64(n), unix.FADV_DONTNEED) // a wish
	}
}

// Allocate implements disk.File. What it could have of the range on a full disk
// may stay with the file, see Limit.
func (f *file) Allocate(at, n int64) error {
	for {
		err := unix.Fallocate(int(f.f.Fd()), 0, at, n)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP):
			// Nothing can be reserved; that a disk is full shows at a write.
			return f.extend(at + n)
		default:
			return err
		}
	}
}

// extend makes the file reach so far, if there is as much space as that takes:
// nobody else may take it meanwhile, or the disk is full when it is written to.
func (f *file) extend(end int64) error {
	info, err := f.f.Stat()
	if err != nil || info.Size() >= end {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.f.Fd()), &fs); err != nil {
		return fmt.Errorf("ask for the free space: %w", err)
	}
	if end-info.Size() > int64(fs.Bavail)*fs.Bsize {
		return unix.ENOSPC
	}
	return f.f.Truncate(end)
}

// Limit implements disk.File.
func (f *file) Limit(bytes int64) error {
	info, err := f.f.Stat()
	if err != nil || info.Size() <= bytes {
		return err
	}
	return f.f.Truncate(bytes)
}

// Sync implements disk.File.
func (f *file) Sync() error { return unix.Fdatasync(int(f.f.Fd())) }

// Close implements disk.File.
func (f *file) Close() error { return f.f.Close() }
