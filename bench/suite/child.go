package suite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// ErrTime: a part took longer than it may.
var ErrTime = errors.New("it took longer than it may")

// maxSaid of a line that is shown; the log has all of it.
const maxSaid = 160

// maxLog is how much of what a part says is kept.
const maxLog = 16 << 20

// tailLines of a failed part's words are shown.
const tailLines = 12

// command is one run of a part.
type command struct {
	args        []string
	dir         string
	environment []string
	output, log string // files
	limit       time.Duration
	say         func(line string)
	family      *family
}

// run runs it to its end or its limit and ends all that it started. The error tells
// the last of what it said.
func (c *command) run(ctx context.Context) (err error) {
	out, err := os.Create(c.output)
	if err != nil {
		return fmt.Errorf("keeping the output: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	log, err := os.Create(c.log)
	if err != nil {
		return fmt.Errorf("keeping the log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.args[0], err)
	}
	process := exec.Command(c.args[0], c.args[1:]...) //nolint:gosec // a part's own command; ended below, with all that it starts
	process.Dir, process.Stdout, process.Stderr = c.dir, out, write
	process.Env = append(os.Environ(), c.environment...)
	forget, err := c.family.start(process)
	write.Close()
	if err != nil {
		read.Close()
		return fmt.Errorf("starting %s: %w", c.args[0], err)
	}
	said := &listener{log: log, say: c.say}
	var listening sync.WaitGroup
	listening.Go(func() { said.listen(read) })

	result := c.wait(ctx, process)
	left, err := c.family.end()
	if left > 0 {
		c.say(fmt.Sprintf("%d processes were left, and ended", left))
	}
	if err != nil {
		read.Close() // somebody may write for ever
	}
	listening.Wait()
	read.Close()
	forget()
	if result != nil && !errors.Is(result, context.Canceled) {
		result = fmt.Errorf("%w\n%s", result, strings.Join(said.tail, "\n"))
	}
	return errors.Join(result, err)
}

// wait waits for the process. At the limit and when the run is given up it is
// interrupted, so that it can clean up, and killed if it takes long for that.
func (c *command) wait(ctx context.Context, process *exec.Cmd) error {
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	timer := time.NewTimer(c.limit)
	defer timer.Stop()
	var why error
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		why = fmt.Errorf("%w: %v", ErrTime, c.limit.Round(time.Second))
	case <-ctx.Done():
		why = ctx.Err()
	}
	_ = process.Process.Signal(os.Interrupt) // it may have ended meanwhile
	timer.Reset(goodbye)
	select {
	case <-ended:
	case <-timer.C:
		_ = process.Process.Kill()
		<-ended
	}
	return why
}

// listener keeps and shows what a part says.
type listener struct {
	log  io.Writer
	say  func(line string)
	kept int
	tail []string
}

func (l *listener) listen(from io.Reader) {
	lines := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 && l.kept < maxLog {
			l.kept += len(line)
			_, _ = l.log.Write(line) // the figures don't depend on it
		}
		// A bar that is drawn over itself says its last state.
		text := strings.TrimRight(string(line), "\r\n ")
		text = text[strings.LastIndexByte(text, '\r')+1:]
		if text != "" {
			if len(text) > maxSaid {
				text = strings.ToValidUTF8(text[:maxSaid], "") + "..."
			}
			l.tail = append(l.tail, text)
			l.tail = l.tail[max(0, len(l.tail)-tailLines):]
			l.say(text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
