package compare

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

// Hosts launches systems with hosts/host.py.
type Hosts struct {
	// Python runs hosts and engines.
	Python string
	// Root is the repository's.
	Root string
	// Dir gets a directory a system, with logs and sockets. It must be short enough
	// for sockets' paths.
	Dir string
	// Nap and Cluster are those of Options.
	Nap, Cluster bool

	mu struct {
		sync.Mutex
		launched int
		// config is the file that says how the cluster of the present model is reached,
		// empty for none.
		config string
	}
}

var _ Launcher = (*Hosts)(nil)

// stopLimit is how long a host may take to end its processes before it is killed.
const stopLimit = 30 * time.Second

func (h *Hosts) script() string { return filepath.Join(h.Root, "bench", "compare", "hosts", "host.py") }

// cluster is the name of the host that runs a Mooncake cluster.
const cluster = "cluster"

// Prepare generates the model's checkpoint, and starts a cluster for its systems.
func (h *Hosts) Prepare(ctx context.Context, model string, storeBytes int64) (Shared, error) {
	out, err := exec.CommandContext(ctx, h.Python, h.script(), "--prepare", model).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("generating the checkpoint of %s: %w\n%s", model, err, out)
	}
	if !h.Cluster {
		return nothingShared{}, nil
	}
	host, err := h.launch(ctx, cluster, model, storeBytes, 0)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.mu.config = host.config
	h.mu.Unlock()
	return host, nil
}

// Launch implements Launcher.
func (h *Hosts) Launch(ctx context.Context, name, model string, storeBytes int64, kvGiB int) (System, error) {
	host, err := h.launch(ctx, name, model, storeBytes, kvGiB)
	if err != nil {
		return nil, err // no typed nil
	}
	return host, nil
}

func (h *Hosts) launch(ctx context.Context, name, model string, storeBytes int64, kvGiB int) (*hostedSystem, error) {
	h.mu.Lock()
	h.mu.launched++
	dir, config := filepath.Join(h.Dir, fmt.Sprintf("%s-%d", name, h.mu.launched)), h.mu.config
	h.mu.Unlock()
	// Not bound to ctx: a host is stopped by the end of its input, so that it can end what it started.
	command := exec.Command(h.Python, h.script(), name, "--model", model, "--dir", dir, //nolint:noctx // see above
		"--store-bytes", strconv.FormatInt(storeBytes, 10), "--kv-gib", strconv.Itoa(kvGiB))
	if h.Nap {
		command.Args = append(command.Args, "--nap")
	}
	if config != "" && name != cluster {
		command.Args = append(command.Args, "--cluster", config)
	}
	// A session of its own: an interrupt from the terminal reaches this command only, which then stops the hosts.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	var errOut tail
	command.Stderr = &errOut
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	host := &hostedSystem{name: name, command: command, input: input}
	ready := make(chan readiness, 1)
	go func() { ready <- readReadiness(output) }()
	select {
	case r := <-ready:
		err = r.err
		host.client, host.sessions = NewClient("http://127.0.0.1:"+strconv.Itoa(r.Port)), r.Sessions
		host.config, host.forget = r.Config, r.Forget
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		closeErr := host.Close()
		return nil, errors.Join(fmt.Errorf("starting %s (logs in %s): %w%s", name, dir, err, errOut.suffix()), closeErr)
	}
	return host, nil
}

// readiness is the line that a host prints once its engine serves.
type readiness struct {
	Port     int   `json:"port"`
	Sessions []int `json:"sessions"`
	// Config is of a cluster.
	Config string `json:"config"`
	// Forget is a command that empties what the node holds beside the engine's own
	// cache.
	Forget []string `json:"forget"`
	Error  string   `json:"error"`
	err    error
}

func readReadiness(output io.Reader) readiness {
	const maxLineBytes = 64 << 10
	line, err := bufio.NewReader(io.LimitReader(output, maxLineBytes)).ReadBytes('\n')
	if err != nil {
		return readiness{err: fmt.Errorf("its host ended early: %w", err)}
	}
	var r readiness
	if err := json.Unmarshal(line, &r); err != nil {
		return readiness{err: fmt.Errorf("decoding its host's report %.100q: %w", line, err)}
	}
	switch {
	case r.Error != "":
		r.err = errors.New(r.Error)
	case r.Port <= 0 || r.Port > 65535 || len(r.Sessions) == 0:
		r.err = fmt.Errorf("its host's report %.100q lacks port or sessions", line)
	}
	return r
}

// hostedSystem is a system behind a host.
type hostedSystem struct {
	name     string
	command  *exec.Cmd
	input    io.Closer
	client   *Client
	sessions []int
	config   string    // of a cluster
	forget   []string  // see readiness
	held     *programs // nil until HoldPrograms
}

func (s *hostedSystem) Name() string { return s.name }

func (s *hostedSystem) Complete(ctx context.Context, request Request) (Answer, error) {
	return s.client.Complete(ctx, request)
}

func (s *hostedSystem) Forget(ctx context.Context, external bool) error {
	if err := s.client.Reset(ctx, external); err != nil || len(s.forget) == 0 {
		return err
	}
	if out, err := exec.CommandContext(ctx, s.forget[0], s.forget[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("emptying the node's store: %w\n%s", err, out)
	}
	return nil
}

func (s *hostedSystem) Idle(ctx context.Context) (bool, error) { return s.client.Idle(ctx) }

func (s *hostedSystem) CPUTime() (time.Duration, error) {
	all, err := machine.Processes("/proc")
	return machine.Used(machine.InSessions(all, s.sessions)), err
}

// HoldPrograms implements System.
func (s *hostedSystem) HoldPrograms() (int64, error) {
	held, bytes, err := holdPrograms("/proc", s.sessions)
	if err != nil {
		return 0, err
	}
	s.held = held
	return bytes, nil
}

// Close ends the host's input, upon which it ends its engine and the rest. A host
// that does not is killed, and what it started after it.
func (s *hostedSystem) Close() error {
	if s.client != nil {
		s.client.Close()
	}
	if s.held != nil {
		s.held.Close()
	}
	s.input.Close()
	kill := time.AfterFunc(stopLimit, func() {
		for _, session := range append(slices.Clone(s.sessions), s.command.Process.Pid) {
			_ = syscall.Kill(-session, syscall.SIGKILL) // may be gone
		}
	})
	defer kill.Stop()
	err := s.command.Wait()
	// A host that failed to start has said why.
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stopping %s: %w", s.name, err)
	}
	return nil
}

// nothingShared is of systems that have nothing in common.
type nothingShared struct{}

func (nothingShared) CPUTime() (time.Duration, error) { return 0, nil }
func (nothingShared) Close() error                    { return nil }

// isGone tells whether reading from /proc failed since the process has ended.
func isGone(err error) bool {
	return errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrProcessDone)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - tailBytes; extra > 0 {
		t.kept = slices.Delete(t.kept, 0, extra)
	}
	return len(p), nil
}

func (t *tail) suffix() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := strings.TrimSpace(string(t.kept)); text != "" {
		return "\n" + text
	}
	return ""
}
