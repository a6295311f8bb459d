package compare

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

// programs are file pages that are held in memory: code and constants of the
// systems' processes. A machine that reclaims what was not used for a while
// would read them from disk at a system's next turn, and the turn's time would
// be the disk's.
type programs struct{ mappings [][]byte }

// extent is a range of a file, in bytes.
type extent struct{ from, to int64 }

// holdPrograms holds all that the processes of the sessions have mapped of files
// now, and returns how many bytes that is.
func holdPrograms(proc string, sessions []int) (*programs, int64, error) {
	all, err := machine.Processes(proc)
	if err != nil {
		return nil, 0, err
	}
	mapped := map[string][]extent{}
	for _, p := range machine.InSessions(all, sessions) {
		maps, err := os.ReadFile(fmt.Sprintf("%s/%d/maps", proc, p.PID))
		if errors.Is(err, fs.ErrNotExist) || isGone(err) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("reading a process's mappings: %w", err)
		}
		if err := addExtents(mapped, maps); err != nil {
			return nil, 0, fmt.Errorf("process %d: %w", p.PID, err)
		}
	}
	held := &programs{}
	var total int64
	for path, extents := range mapped {
		n, err := held.hold(path, merge(extents))
		if err != nil {
			held.Close()
			return nil, 0, err
		}
		total += n
	}
	return held, total, nil
}

// addExtents adds the private mappings of files in a /proc/PID/maps: those are
// programs, libraries and what is read like them.
func addExtents(mapped map[string][]extent, maps []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		// from-to perms offset dev inode path; a path may hold blanks.
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") {
			continue
		}
		_, path, _ := strings.Cut(lines.Text(), "/")
		path = "/" + path
		if fields[1][len(fields[1])-1] != 'p' || strings.HasSuffix(path, " (deleted)") || strings.HasPrefix(path, "/dev/") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		begin, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		offset, err3 := strconv.ParseInt(fields[2], 16, 64)
		if err := errors.Join(err1, err2, err3); err != nil || end < begin {
			return fmt.Errorf("malformed mapping %.100q", lines.Text())
		}
		mapped[path] = append(mapped[path], extent{offset, offset + int64(end-begin)})
	}
	return lines.Err()
}

// merge returns the union of extents, in order.
func merge(extents []extent) []extent {
	slices.SortFunc(extents, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	var merged []extent
	for _, e := range extents {
		if last := len(merged) - 1; last >= 0 && e.from <= merged[last].to {
			merged[last].to = max(merged[last].to, e.to)
			continue
		}
		merged = append(merged, e)
	}
	return merged
}

// hold maps and locks extents of a file. One that is gone is left out.
func (p *programs) hold(path string, extents []extent) (held int64, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("holding a program: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, err
	}
	for _, e := range extents {
		e.to = min(e.to, info.Size())
		if e.to <= e.from {
			continue
		}
		mapping, err := unix.Mmap(int(file.Fd()), e.from, int(e.to-e.from), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, fmt.Errorf("mapping %s: %w", path, err)
		}
		p.mappings = append(p.mappings, mapping)
		if err := unix.Mlock(mapping); err != nil {
			return 0, fmt.Errorf("locking %s into memory (ulimit -l): %w", path, err)
		}
		held += e.to - e.from
	}
	return held, nil
}

// Close lets go of everything.
func (p *programs) Close() {
	for _, mapping := range p.mappings {
		_ = unix.Munmap(mapping) // was mapped by us
	}
	p.mappings = nil
}
