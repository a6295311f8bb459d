package mooncaketest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startChild starts a process that does not outlive this one; exited is closed when
// it has ended and was waited for. The kernel takes the end of the thread that
// started it for its parent's death, and threads of Go end: so one is kept for it.
func startChild(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, over := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // killed, mostly
		}
		close(over)
	}()
	return over, <-started
}
