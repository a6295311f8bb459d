package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// keptPrefix begins the name under which the service manager keeps a segment; its
// UUID follows.
const keptPrefix = "segment-"

// headerBytes is enough of a segment to tell which one it is.
const headerBytes = 4096

// fromManager returns the segments that the service manager has kept.
func (s *supervision) fromManager(log *slog.Logger) []kept {
	var out []kept
	for _, file := range s.inherited.Take(func(name string) bool { return strings.HasPrefix(name, keptPrefix) }) {
		k, err := identify(file)
		if err != nil {
			log.Warn("what the service manager kept is no segment", "name", file.Name(), "error", err)
			s.Drop(file.Name())
		} else {
			k.name = file.Name()
			out = append(out, k)
		}
		_ = file.Close() // k has a descriptor of its own
	}
	return out
}

// identify reads which segment a file is. It is believed only once it is mapped
// and adopted.
func identify(file *os.File) (kept, error) {
	var stat unix.Stat_t
	fd := int(file.Fd())
	if err := unix.Fstat(fd, &stat); err != nil {
		return kept{}, err
	}
	header := make([]byte, headerBytes)
	if n, err := unix.Pread(fd, header, 0); err != nil {
		return kept{}, fmt.Errorf("read its header: %w", err)
	} else if n < headerBytes {
		return kept{}, fmt.Errorf("read its header: it has %d bytes", n)
	}
	layout, err := embedded.ReadLayout(header, uint64(stat.Size))
	if err != nil {
		return kept{}, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return kept{}, err
	}
	info := connector.SegmentInfo{UUID: fmt.Sprintf("%x", layout.UUID), Bytes: layout.FileBytes, DataOffset: layout.DataOffset}
	return kept{info: info, fd: own}, nil
}

// keep hands the segment in use to the manager, and makes it forget whatever else
// it had, by the names under which it had them.
func (s *supervision) keep(uuid string, fd int, had []string) {
	name := keptPrefix + uuid
	s.Keep(name, fd)
	for _, other := range had {
		if other != name {
			s.Drop(other)
		}
	}
}
