package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
)

// disk looks at the directory of the disk tier.
func disk(_ context.Context, s *System, c *Settings) []Finding {
	if c.DiskDir == "" {
		return ok("no disk tier is asked for", "disk_dir")
	}
	where := c.DiskDir
	owner, err := s.Stat(where)
	if errors.Is(err, fs.ErrNotExist) {
		// The daemon makes the directory, not its parents.
		where = path.Dir(where)
		if owner, err = s.Stat(where); errors.Is(err, fs.ErrNotExist) {
			return found(Failure, "is not there, nor is its parent", c.DiskDir, "make the directory, for the daemon's user alone")
		}
	}
	if err != nil {
		return found(Failure, fmt.Sprintf("can't be looked at: %v", err), where, "choose another disk_dir")
	}
	if !owner.Mode.IsDir() {
		return found(Failure, "is no directory", where, "choose another disk_dir")
	}
	if where == c.DiskDir { // else the daemon makes it
		if owner.UID != s.UID {
			return found(Failure, fmt.Sprintf("belongs to user %d, you are %d; the daemon refuses it", owner.UID, s.UID), where,
				"chown it to the daemon's user, or choose another disk_dir")
		}
		if owner.Mode.Perm()&0o077 != 0 {
			return found(Failure, fmt.Sprintf("has mode %04o: others get at what is cached, so the daemon refuses it", owner.Mode.Perm()), where, "chmod 700 "+where)
		}
	}
	if err := s.Writable(where); err != nil {
		return found(Failure, fmt.Sprintf("can't be written to: %v", err), where, "chown it to the daemon's user; in a hardened unit name it in ReadWritePaths=")
	}
	memory, err := s.InMemory(where)
	switch {
	case err != nil:
		return found(Failure, fmt.Sprintf("its file system does not answer: %v", err), where, "mend or unmount it, or choose another disk_dir")
	case memory:
		return found(Failure, "its files are in memory (tmpfs): the tier would take what store_bytes could have", where, "choose a directory on a local NVMe drive")
	}
	return diskSpace(s, c, where)
}

func diskSpace(s *System, c *Settings, where string) []Finding {
	total, free, err := s.SpaceBytes(where)
	switch {
	case err != nil:
		return found(Failure, fmt.Sprintf("its file system does not answer: %v", err), where, "mend or unmount it, or choose another disk_dir")
	case c.DiskBytes > total:
		return found(Warning, fmt.Sprintf("a tier of %s does not fit a file system of %s; it stays smaller", size(c.DiskBytes), size(total)), where, "lower disk_bytes")
	case c.DiskBytes > free:
		return found(Warning, fmt.Sprintf("a tier of %s wants more than the %s that are free; a file of ours counts as used already", size(c.DiskBytes), size(free)), where,
			"lower disk_bytes, or free space")
	}
	return ok(fmt.Sprintf("a tier of %s fits the %s that are free", size(c.DiskBytes), size(free)), where)
}
