package sideproc

import (
	"context"
	_ "embed" // the agent's source
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed agent/agent.py
var agentSource string

// socketBytes is room for a question of some thousand keys, which is written in
// one go then.
const socketBytes = 1 << 20

const (
	// lingering is how long a dead process's descendants may keep its log open.
	lingering = time.Second
	// lastWords is how long is waited for the end of what it said.
	lastWords = 200 * time.Millisecond
)

// process is a started agent.
type process struct {
	cmd    *exec.Cmd
	conn   *net.UnixConn
	log    *logLines
	logged chan struct{} // closed when all that it said is read
	exited chan struct{} // closed when it is dead and waited for
	exit   error         // set before exited is closed
	work   sync.WaitGroup
}

// start starts the interpreter with the agent.
//
// REQUIRES: the calling goroutine keeps its thread until the process is dead: the
// kernel kills the process when that thread ends.
func start(cfg *Config) (*process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "side process"), os.NewFile(uintptr(pair[1]), "side process, its end")
	defer ours.Close()
	defer theirs.Close()
	fd, err := unix.FcntlInt(uintptr(cfg.Memory.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	memory := os.NewFile(uintptr(fd), "memory")
	defer memory.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	defer in.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	stream, ok := conn.(*net.UnixConn)
	if !ok {
		panic("BUG: a Unix socket is none")
	}
	_ = stream.SetWriteBuffer(socketBytes) // the kernel may give less
	p := &process{conn: stream, log: newLogLines(cfg.Log), logged: make(chan struct{}), exited: make(chan struct{})}
	// Isolated: no file beside it and no variable of Python's changes what it imports.
	p.cmd = exec.Command(cfg.Python, "-I", "-", "mooncake-sidecar-store-agent")
	p.cmd.Stdin = strings.NewReader(agentSource)
	p.cmd.Stdout, p.cmd.Stderr = in, in
	p.cmd.ExtraFiles = []*os.File{theirs, memory} // 3 and 4
	p.cmd.Env = environ(cfg.Environ)
	p.cmd.Dir = "/"
	p.cmd.WaitDelay = lingering
	// A group of its own, so that a terminal's interrupt is ours to handle, and what
	// it starts is killed with it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		_, _ = stream.Close(), out.Close()
		return nil, fmt.Errorf("start %s (store_python): %w", cfg.Python, err)
	}
	p.work.Go(func() {
		defer out.Close()
		p.log.read(out)
		close(p.logged)
	})
	p.work.Go(func() { p.await(out) })
	return p, nil
}

// await waits for the process's end, and ends what it left behind.
func (p *process) await(log io.Closer) {
	// Dead and not yet waited for, it keeps its number, and the group's, from others.
	for errors.Is(unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	p.kill()
	p.exit = p.cmd.Wait()
	close(p.exited)
	timer := time.NewTimer(lingering)
	defer timer.Stop()
	select {
	case <-p.logged:
	case <-timer.C:
		_ = log.Close() // what left the group has it open yet
	}
}

// kill ends the process and its group; it does not wait.
func (p *process) kill() {
	select {
	case <-p.exited: // the number may be another's
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may be dead already
	}
}

// close waits for the process's death and what belongs to it.
//
// REQUIRES: it was killed, or ends by itself.
func (p *process) close() {
	<-p.exited
	_ = p.conn.Close()
	p.work.Wait()
}

// errExited is why calls fail when nobody has condemned the process.
func (p *process) errExited() error {
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-p.logged:
	case <-timer.C:
	}
	what := "it exited"
	if p.exit != nil {
		what = p.exit.Error()
	}
	if last := p.log.last(); last != "" {
		return fmt.Errorf("%s; it said: %s", what, last)
	}
	return errors.New(what)
}

// greet sends the settings and waits until the process is ready. A process that
// takes too long is killed.
func (p *process) greet(ctx context.Context, cfg *Config) (*hello, *ready, error) {
	sent, err := cfg.settings()
	if err != nil {
		return nil, nil, err
	}
	if err := p.conn.SetDeadline(time.Now().Add(cfg.Limits.Start)); err != nil {
		return nil, nil, fmt.Errorf("side process: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var h hello
	f, err := readFrame(p.conn)
	if err == nil {
		err = greeting(f, kindHello, &h)
	}
	if err == nil && h.Protocol != protocolVersion {
		err = fmt.Errorf("%w: version %d", errFrame, h.Protocol)
	}
	if err != nil {
		return nil, nil, p.greetFault("start", cfg, err)
	}
	if pid := p.cmd.Process.Pid; h.PID != pid {
		return nil, nil, fmt.Errorf("side process: %s (store_python) runs Python in another process than the one that was started (%d, not %d), which could not be killed for sure: name the interpreter itself, not a wrapper like uv run or conda run", cfg.Python, h.PID, pid)
	}
	encoded, err := json.Marshal(sent)
	if err != nil {
		return nil, nil, fmt.Errorf("side process: %w", err)
	}
	if _, err := p.conn.Write(endFrame(append(beginFrame(nil, 0, kindSetup), encoded...))); err != nil {
		return nil, nil, p.greetFault("settings", cfg, err)
	}
	var r ready
	if f, err = readFrame(p.conn); err == nil {
		err = greeting(f, kindReady, &r)
	}
	if err != nil {
		return nil, nil, p.greetFault("setup", cfg, err)
	}
	if err := p.conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, fmt.Errorf("side process: %w", err)
	}
	return &h, &r, r.fault(cfg)
}

// greetFault says what became of a process that did not greet.
func (p *process) greetFault(stage string, cfg *Config, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("side process: %s: not ready in %s", stage, cfg.Limits.Start)
	}
	// Its end of the socket is closed, so that it ends: let it say why.
	timer := time.AfterFunc(cfg.Limits.Close, p.kill)
	defer timer.Stop()
	<-p.exited
	return fmt.Errorf("side process: %s: %w: %w", stage, err, p.errExited())
}
