package lookup

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startPatience bounds how long a daemon or server may take to come up.
const startPatience = 2 * time.Minute

// stopPatience is how long one may take to end.
const stopPatience = 10 * time.Second

// errEnded: a process is not there any more.
var errEnded = errors.New("the process has ended")

// process is a child that ends with its context or at stop.
type process struct {
	cmd  *exec.Cmd
	log  string // file of its output
	done chan struct{}
}

// start starts a program with its output in a file.
func start(ctx context.Context, logFile string, stdin io.Reader, env []string, program string, args ...string) (*process, error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, log, log
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) } // it has children of its own to end
	cmd.WaitDelay = stopPatience
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	p := &process{cmd: cmd, log: logFile, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // whoever waits for it looks at the log
	}()
	return p, nil
}

// until waits for something that the process brings about.
func (p *process) until(ctx context.Context, ready func() bool) error {
	deadline := time.Now().Add(startPatience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		var err error
		select {
		case <-p.done:
			err = errEnded
		case <-ctx.Done():
			err = ctx.Err()
		case <-tick.C:
			if time.Now().After(deadline) {
				err = context.DeadlineExceeded
			}
		}
		if err != nil {
			return fmt.Errorf("%s does not come up: %w:\n%s", filepath.Base(p.cmd.Path), err, tail(p.log))
		}
	}
	return nil
}

// stop ends the process and all it has started, and waits.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(unix.SIGTERM) // it may have ended
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) // what is left of it
	<-p.done
}

func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-4000):]))
}

// lookupd starts the daemon in a runtime directory, and waits until its log has
// that it is ready and all of says.
func lookupd(ctx context.Context, binaries, dir string, storeBytes int, env []string, says ...string) (*process, error) {
	p, err := start(ctx, filepath.Join(dir, "lookupd.log"), nil, env, filepath.Join(binaries, "mooncake-lookupd"),
		"--runtime-dir", dir, "--store-bytes", strconv.Itoa(storeBytes))
	if err != nil {
		return nil, err
	}
	for _, text := range append([]string{"mooncake-lookupd is ready"}, says...) {
		if err := p.until(ctx, func() bool { return strings.Contains(tail(p.log), text) }); err != nil {
			p.stop()
			return nil, fmt.Errorf("%q is not in its log: %w", text, err)
		}
	}
	return p, nil
}

// question is asked of every server.
type question struct {
	Name string `json:"name"`
	// Port tells an in-tree socket from others: the tensor-parallel size.
	Port   int    `json:"port"`
	Tokens int    `json:"tokens"`
	File   string `json:"file"` // of the hashes
	Want   int    `json:"want"` // tokens
	blob   []byte
}

// script is what the client's process does.
type script struct {
	Bases     map[string]string `json:"bases"` // by server, the directory of its lookup sockets
	Questions []question        `json:"questions"`
	Warm      int               `json:"warm"`
	Rounds    int               `json:"rounds"`
	HashBytes int               `json:"hash_bytes"`
	// PauseSeconds are between two turns.
	PauseSeconds float64 `json:"pause_s"`
	// Prime: what is not there is asked for once more, before the time is taken.
	Prime bool `json:"prime"`
	// Apart: the shim's client asks after the others, not by turns: a daemon would learn
	// from one client's questions what the other's ask for.
	Apart bool `json:"apart"`
	// Channels are the descriptors of our lookup channels, by port.
	Channels map[int]int `json:"channels"`
	// Strides are how sparse questions on them may be.
	Strides map[int]int `json:"strides"`
	// After is what is run when a question on one of them has been answered, by port.
	After map[int][]string `json:"after"`
}

// samples are nanoseconds by client and server, like vllm/ours, and question.
type samples map[string]map[string][]int64

// askFromPython has vLLM's own client and our shim's ask, in a process of their
// own. channels are the lookup channels by port.
func askFromPython(ctx context.Context, python, source, dir string, s *script, channels map[int]*os.File) (samples, error) {
	const firstExtra = 3 // the number of the first descriptor that a child is given
	var files []*os.File
	s.Channels = map[int]int{}
	for port, file := range channels {
		s.Channels[port] = firstExtra + len(files)
		files = append(files, file)
	}
	encoded, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the questions: %w", err)
	}
	cmd := exec.CommandContext(ctx, python, filepath.Join(source, "bench", "lookup", "client.py"))
	cmd.Stdin = strings.NewReader(string(encoded))
	cmd.Env = append(os.Environ(), "VLLM_LOGGING_LEVEL=ERROR")
	cmd.ExtraFiles = files
	errors, err := os.Create(filepath.Join(dir, "client.log"))
	if err != nil {
		return nil, err
	}
	defer errors.Close()
	cmd.Stderr = errors
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("the clients in Python: %w:\n%s", err, tail(errors.Name()))
	}
	var taken samples
	if err := json.Unmarshal(lastLine(out), &taken); err != nil {
		return nil, fmt.Errorf("the clients in Python: %w in %.200q", err, out)
	}
	return taken, nil
}

func lastLine(out []byte) (last []byte) {
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		last = append(last[:0], lines.Bytes()...)
	}
	return last
}

// inTree starts vLLM's own lookup servers on a real mooncake_master that has the
// asked chunks, an object of so many bytes for each rank.
func inTree(ctx context.Context, python, source, dir, hashes string, objectBytes int, sizes []int) (*process, string, error) {
	base := filepath.Join(dir, "intree")
	if err := os.Mkdir(base, 0o700); err != nil {
		return nil, "", err
	}
	args := []string{filepath.Join(source, "bench", "lookup", "intree.py"), base, hashes, strconv.Itoa(hashBytes), strconv.Itoa(objectBytes)}
	for _, tp := range sizes {
		args = append(args, strconv.Itoa(tp))
	}
	env := []string{"VLLM_RPC_BASE_PATH=" + base, "VLLM_LOGGING_LEVEL=ERROR"}
	p, err := start(ctx, filepath.Join(dir, "intree.log"), nil, env, python, args...)
	if err != nil {
		return nil, "", err
	}
	if err := p.until(ctx, func() bool { return strings.Contains(tail(p.log), "in-tree server is ready") }); err != nil {
		p.stop()
		return nil, "", err
	}
	return p, base, nil
}
