package sdnotify

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// sendTimeout bounds one message.
const sendTimeout = 100 * time.Millisecond

// Notifier sends messages to the service manager. It is safe for concurrent use.
type Notifier struct {
	socket   string // empty: there is no manager
	watchdog time.Duration
	log      *slog.Logger
	lost     atomic.Bool // a message was lost, which has been logged
}

// FromEnvironment finds the manager that the environment names.
func FromEnvironment(log *slog.Logger) *Notifier {
	n := &Notifier{socket: os.Getenv("NOTIFY_SOCKET"), log: log}
	if n.socket == "" {
		return n
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the service manager's watchdog is not understood, and will not be fed", "error", err)
	}
	n.watchdog = interval
	return n
}

// Watchdog is how long the manager waits for Alive before it kills us, 0 for
// ever.
func (n *Notifier) Watchdog() time.Duration { return n.watchdog }

// Ready says that the daemon serves, or serves again after Reloading.
func (n *Notifier) Ready(status string) { n.send(daemon.SdNotifyReady+"\n"+statusLine(status), -1) }

// Status describes the daemon's state in a line for people.
func (n *Notifier) Status(text string) { n.send(statusLine(text), -1) }

// Stopping says that the daemon ends.
func (n *Notifier) Stopping(status string) {
	n.send(daemon.SdNotifyStopping+"\n"+statusLine(status), -1)
}

// Reloading says that the configuration is being read; Ready must follow. The
// manager needs the time to tell it from an earlier one.
func (n *Notifier) Reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		n.log.Warn("no monotonic clock", "error", err)
		return
	}
	n.send(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/int64(time.Microsecond)), -1)
}

// Extend asks for that much more time to start or stop, counted from now.
func (n *Notifier) Extend(d time.Duration) {
	n.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds()), -1)
}

// Alive feeds the watchdog.
func (n *Notifier) Alive() { n.send(daemon.SdNotifyWatchdog, -1) }

// Keep gives the manager a copy of a descriptor, which comes back under that name
// when the daemon is started again. One that it has already is not kept twice.
//
// REQUIRES: name is of letters, digits and dashes.
func (n *Notifier) Keep(name string, fd int) { n.send("FDSTORE=1\nFDNAME="+name, fd) }

// Drop makes the manager close what it keeps under that name.
func (n *Notifier) Drop(name string) { n.send("FDSTOREREMOVE=1\nFDNAME="+name, -1) }

// statusLine keeps a text on its line: the next line would be another message.
func statusLine(text string) string {
	return "STATUS=" + strings.ReplaceAll(text, "\n", " ")
}

func (n *Notifier) send(message string, fd int) {
	if n.socket == "" {
		return
	}
	if err := n.trySend(message, fd); err != nil && !n.lost.Swap(true) {
		n.log.Warn("the service manager was not told", "message", strings.SplitN(message, "\n", 2)[0], "error", err)
	}
}

func (n *Notifier) trySend(message string, fd int) (err error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	limit := unix.NsecToTimeval(sendTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return err
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	// A name that begins with @ is an abstract one, here as for systemd.
	return unix.Sendmsg(sock, []byte(message), rights, &unix.SockaddrUnix{Name: n.socket}, unix.MSG_NOSIGNAL)
}
