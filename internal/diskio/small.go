package diskio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A small file is replaced by changing places with a spare one of the same name
// and ".new", which stays behind and is written to the next time. Both have all
// their blocks from the start, so that a small file can be replaced on a disk
// that is full: what it says (that something was reset, say) must not wait for
// somebody to free space.
//
// On the disk the content stands behind its length, and is padded.
const (
	smallHead = 8
	// smallUnit is what the length of small files on the disk is a multiple of.
	smallUnit = 64 << 10
)

// ReadFile implements disk.Dir.
func (d Dir) ReadFile(name string, limit int) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	padded, err := io.ReadAll(io.LimitReader(f, int64(smallHead+limit)))
	if err != nil {
		return nil, err
	}
	if len(padded) < smallHead {
		return nil, nil
	}
	content := padded[smallHead:]
	return content[:min(binary.LittleEndian.Uint64(padded), uint64(len(content)))], nil
}

// WriteFile implements disk.Dir.
func (d Dir) WriteFile(name string, data []byte) error {
	path := filepath.Join(d.path, name)
	padded := make([]byte, (smallHead+len(data)+smallUnit-1)/smallUnit*smallUnit)
	binary.LittleEndian.PutUint64(padded, uint64(len(data)))
	copy(padded[smallHead:], data)
	if err := writeSpare(path+".new", padded); err != nil {
		return err
	}
	first, err := exchange(path+".new", path)
	if err != nil {
		return err
	}
	if err := d.syncNames(); err != nil {
		return err
	}
	if first {
		// Written, and not merely reserved: not every file system can do that.
		if err := writeSpare(path+".new", padded); err != nil {
			return fmt.Errorf("%s is written, but not the spare that takes its place next: %w", path, err)
		}
	}
	return nil
}

// writeSpare writes a file in place, without giving its blocks away.
func writeSpare(path string, padded []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(padded, 0)
	if err == nil {
		err = f.Truncate(int64(len(padded))) // an earlier one may have been longer
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// exchange puts the spare in the file's place, and the file, if there is one, in
// the spare's. first: there is no spare afterwards.
func exchange(spare, path string) (first bool, err error) {
	switch err := unix.Renameat2(unix.AT_FDCWD, spare, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE); {
	case err == nil:
		return false, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return true, os.Rename(spare, path) // nothing to change places with, or no such call here
	default:
		return false, fmt.Errorf("put %s in its place: %w", spare, err)
	}
}

// syncNames returns when the directory survives a loss of power.
func (d Dir) syncNames() error {
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
