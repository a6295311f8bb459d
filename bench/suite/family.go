package suite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

// goodbye is how long what was left behind has to end by itself.
const goodbye = 5 * time.Second

// endPause is how often it is looked for who still runs.
const endPause = 20 * time.Millisecond

// family is this process's descendants. Orphans among them become its children, so
// that none escapes; it takes note of their end at once, for whoever waits for one to
// be gone must not see it as a corpse for ever.
type family struct {
	stop, stopped chan struct{}
	proc          string

	mu struct {
		sync.Mutex
		// waited are children that somebody else waits for.
		waited map[int]bool
	}
}

// newFamily begins to take in orphans. The caller closes it.
func newFamily() (*family, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("taking in orphaned processes: %w", err)
	}
	f := &family{stop: make(chan struct{}), stopped: make(chan struct{}), proc: "/proc"}
	f.mu.waited = map[int]bool{}
	go f.reap()
	return f, nil
}

// close ends the taking in. It does not end descendants.
func (f *family) close() error {
	close(f.stop)
	<-f.stopped
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
}

// start starts a command in a process session of its own. forget is called when it
// was waited for.
func (f *family) start(c *exec.Cmd) (forget func(), err error) {
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := c.Start(); err != nil {
		return nil, err
	}
	pid := c.Process.Pid
	f.mu.waited[pid] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.mu.waited, pid)
	}, nil
}

// reap takes note of orphans' ends.
func (f *family) reap() {
	defer close(f.stopped)
	ended := make(chan os.Signal, 1) // one is enough: it is looked for all that ended
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		select {
		case <-ended:
			f.reapOnce()
		case <-f.stop:
			return
		}
	}
}

func (f *family) reapOnce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := machine.Processes(f.proc)
	if err != nil {
		return // the next end brings another chance
	}
	for _, p := range all {
		if p.Parent == os.Getpid() && p.Ended && !f.mu.waited[p.PID] {
			_, _ = unix.Wait4(p.PID, nil, unix.WNOHANG, nil)
		}
	}
}

// alive are the descendants that run.
func (f *family) alive() ([]machine.Process, error) {
	all, err := machine.Processes(f.proc)
	if err != nil {
		return nil, err
	}
	var alive []machine.Process
	for _, p := range machine.Below(all, os.Getpid()) {
		if !p.Ended {
			alive = append(alive, p)
		}
	}
	return alive, nil
}

// used is the CPU time of all descendants, of those that have ended too.
func (f *family) used() (time.Duration, error) {
	all, err := machine.Processes(f.proc)
	if err != nil {
		return 0, err
	}
	var ended syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ended); err != nil {
		return 0, fmt.Errorf("reading the children's times: %w", err)
	}
	return machine.Used(machine.Below(all, os.Getpid())) + time.Duration(ended.Utime.Nano()+ended.Stime.Nano()), nil
}

// end ends all descendants and returns when they are gone: by SIGTERM, and by SIGKILL
// those that stay. It returns how many there were.
func (f *family) end() (left int, err error) {
	asked := map[int]bool{}
	for begin := time.Now(); ; {
		f.reapOnce()
		alive, err := f.alive()
		if err != nil || len(alive) == 0 {
			return len(asked), err
		}
		gone := time.Since(begin)
		if gone > 2*goodbye {
			return len(asked), fmt.Errorf("process %d does not end", alive[0].PID)
		}
		for _, p := range alive { // new ones, too: whoever ends may have begun another
			kind := syscall.SIGTERM
			if gone > goodbye {
				kind = syscall.SIGKILL
			} else if asked[p.PID] {
				continue
			}
			asked[p.PID] = true
			if err := syscall.Kill(p.PID, kind); err != nil && !errors.Is(err, syscall.ESRCH) {
				return len(asked), fmt.Errorf("ending process %d: %w", p.PID, err)
			}
		}
		time.Sleep(endPause)
	}
}
