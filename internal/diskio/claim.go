package diskio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ErrNotOurs: others can read or replace what is in the directory.
var ErrNotOurs = errors.New("the directory of a disk tier must belong to the daemon's user alone")

// claim makes the directory if it is not there, and sees to it that nobody else
// gets at what is in it: the file has the KV of everybody's prompts.
func (d Dir) claim() error {
	if err := os.Mkdir(d.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Stat(d.path)
	if err != nil {
		return err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%w: %s is no directory; name another disk_dir", ErrNotOurs, d.path)
	case known && owner.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("%w: %s belongs to user %d, the daemon runs as user %d; chown it, or name another disk_dir", ErrNotOurs, d.path, owner.Uid, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: %s has mode %#o, so that others get at it; chmod 700 it, or name another disk_dir", ErrNotOurs, d.path, info.Mode().Perm())
	}
	return nil
}
