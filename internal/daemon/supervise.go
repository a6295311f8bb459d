package daemon

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/internal/sdnotify"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
)

// manager is the service manager that started a daemon, or nobody. What each call
// means is said at sdnotify.Notifier.
type manager interface {
	Watchdog() time.Duration
	Ready(status string)
	Status(text string)
	Stopping(status string)
	Reloading()
	Extend(d time.Duration)
	Alive()
	Keep(name string, fd int)
	Drop(name string)
}

var _ manager = (*sdnotify.Notifier)(nil)

const (
	// beatsPerWatchdog is how often a loop goes round in the time after which the
	// manager takes us for dead.
	beatsPerWatchdog = 4
	// patienceForMemory is what is asked of the manager before each step of the
	// start that may take long: looking through a kept segment, allocating memory.
	patienceForMemory = time.Minute
)

// supervision is a daemon's dealings with the service manager.
type supervision struct {
	manager
	inherited *sdnotify.Inherited
	// pulse is fed by the daemon's loops; nil without a watchdog.
	pulse *pulse.Group
	// interval is how often a loop that has nothing to do must beat; 0: never.
	interval time.Duration
}

// supervise takes over what the service manager passed to this process.
func supervise(log *slog.Logger) *supervision {
	s := &supervision{manager: sdnotify.FromEnvironment(log), inherited: sdnotify.Inherit()}
	if watchdog := s.Watchdog(); watchdog > 0 {
		s.pulse, s.interval = pulse.New(s.Alive), watchdog/beatsPerWatchdog
	}
	return s
}

// settled closes what was passed and nobody wanted.
func (s *supervision) settled(log *slog.Logger) {
	if names := s.inherited.Close(); len(names) > 0 {
		log.Warn("descriptors of the service manager are of no use here", "names", names)
	}
}

// reloading tells the manager of a reload.
func (s *supervision) reloading(reload func()) {
	s.Reloading()
	reload()
	s.Ready("configuration read again")
}

// sessionSocket takes the manager's listening socket, nil when there is none.
func (s *supervision) sessionSocket() *os.File {
	sockets := s.inherited.Take(func(name string) bool { return !strings.HasPrefix(name, keptPrefix) })
	if len(sockets) == 0 {
		return nil
	}
	for _, more := range sockets[1:] {
		_ = more.Close() // one socket unit, one socket
	}
	return sockets[0]
}

// accept makes an accept function of l that goes round like every other loop of
// the daemon, at least once in each interval. It calls idle once in each
// interval, however many peers come meanwhile.
func (s *supervision) accept(l *unixmsg.Listener, idle func()) func() (*unixmsg.Conn, error) {
	if s.pulse == nil {
		return l.Accept
	}
	loop := s.pulse.Join()
	due := time.Now().Add(s.interval)
	return func() (*unixmsg.Conn, error) {
		for {
			loop.Beat()
			if now := time.Now(); !now.Before(due) {
				idle()
				due = now.Add(s.interval)
			}
			if err := l.SetDeadline(due); err != nil {
				return nil, err
			}
			conn, err := l.Accept()
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return conn, err
			}
		}
	}
}

// sessionOptions are those of a session socket.
func sessionOptions(c *config.Common) unixmsg.Options {
	opts := unixmsg.Options{Refusal: refusal}
	if c.GroupAccess {
		opts.Allow, opts.Mode = unixmsg.OwnGroupToo, groupSocketMode
	}
	return opts
}

// groupSocketMode is the mode of sockets that the group may use.
const groupSocketMode = 0o660

// socketMode is the mode of lookup sockets.
func socketMode(c *config.Common) os.FileMode {
	if c.GroupAccess {
		return groupSocketMode
	}
	return 0
}
