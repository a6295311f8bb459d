package unixmsg

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestForeignUserIsRefused connects as another user, for whom the directory and
// the socket were left open: the kernel's credentials decide.
func TestForeignUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as somebody else")
	}
	dir := t.TempDir()
	l := listen(t, filepath.Join(dir, "s"), Options{})
	for _, open := range []string{filepath.Dir(dir), dir, l.Path()} {
		if err := os.Chmod(open, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = 65534
	dialed := make(chan error, 1)
	go func() {
		// Credentials are a thread's. This one is never unlocked, so it ends with
		// the goroutine and no other gets it.
		runtime.LockOSThread()
		dialed <- func() error {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				return errno
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: l.Path()}); err != nil {
				return err
			}
			// Whatever it says, the answer is the end.
			_, _ = unix.Write(fd, []byte("hello"))
			if n, err := unix.Read(fd, make([]byte, 64)); n > 0 {
				return errors.New("the foreign user got an answer")
			} else if err != nil && !errors.Is(err, unix.ECONNRESET) {
				return err
			}
			return nil
		}()
	}()
	if _, err := l.Accept(); !errors.Is(err, ErrPeerRefused) {
		t.Errorf("Accept: %v, want ErrPeerRefused", err)
	}
	if err := <-dialed; err != nil {
		t.Error(err)
	}
}
