package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// daemons are a lookupd and a worker in a runtime directory of their own.
type daemons struct {
	dir             string
	lookupd, worker *exec.Cmd
}

func startDaemons(ctx context.Context, b Build, storeBytes int) (_ *daemons, err error) {
	d := &daemons{}
	if d.dir, err = os.MkdirTemp("", "datapath-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.stop()
		}
	}()
	if d.lookupd, err = d.start(ctx, b, "mooncake-lookupd", "lookupd.sock", "--store-bytes", strconv.Itoa(storeBytes)); err != nil {
		return nil, err
	}
	d.worker, err = d.start(ctx, b, "mooncake-worker", "worker-host-0.sock")
	return d, err
}

// start starts a daemon and waits for its socket.
func (d *daemons) start(ctx context.Context, b Build, program, socket string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(d.dir, program+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, program), append(args, "--runtime-dir", d.dir)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(d.dir, socket)); err == nil {
			return cmd, nil
		}
	}
	text, _ := os.ReadFile(log.Name())
	return cmd, fmt.Errorf("%s does not come up:\n%s", program, text)
}

func (d *daemons) stop() {
	for _, cmd := range []*exec.Cmd{d.worker, d.lookupd} {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait() // ended by the signal
		}
	}
	_ = os.RemoveAll(d.dir)
}

// usage is what a process has used so far.
type usage struct {
	cpu    time.Duration
	faults int
}

func (u usage) minus(v usage) usage { return usage{u.cpu - v.cpu, u.faults - v.faults} }

// usageOf asks the kernel's clock of the process, which counts threads that have
// ended too.
func usageOf(pid int) (u usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 8 {
		return u, errors.New("/proc stat is short")
	}
	if u.faults, err = strconv.Atoi(fields[7]); err != nil {
		return u, err
	}
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|schedClock, &used); err != nil {
		return u, fmt.Errorf("processor time of %d: %w", pid, err)
	}
	u.cpu = time.Duration(used.Nano())
	return u, nil
}

// schedClock is CPUCLOCK_SCHED of a process' clock id.
const schedClock = 2
