package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/subject"
	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// Library is a Go library in a process of its own, see package subject.
type Library struct {
	name    string
	command []string
	cmd     *exec.Cmd
	in      io.Closer
	send    *json.Encoder
	receive *json.Decoder
	load    workload.Options
	prompts int
}

var _ System = (*Library)(nil)

// NewLibrary returns the library that a command serves.
func NewLibrary(name string, command ...string) *Library {
	return &Library{name: name, command: command}
}

// inProcess is the only way to ask a library.
const inProcess = "call"

// Name implements System.
func (l *Library) Name() string { return l.name }

// Forms implements System.
func (l *Library) Forms() []string { return []string{inProcess} }

// Load implements System.
func (l *Library) Load(ctx context.Context, load workload.Options, threads int) (Loaded, error) {
	// A new process: what an earlier load has left behind is gone.
	if err := errors.Join(l.Close(), l.start(ctx)); err != nil {
		return Loaded{}, err
	}
	l.load, l.prompts = load, 0
	a, err := l.do(&subject.Command{Load: &load, Threads: threads})
	if err != nil {
		return Loaded{}, err
	}
	return Loaded{Blocks: a.Blocks, Took: a.Took, CPU: a.CPU, Bytes: a.Heap}, nil
}

// Prompt implements System.
func (l *Library) Prompt(_ context.Context, p Prompt) error {
	l.prompts++
	_, err := l.do(&subject.Command{Prompt: &subject.Prompt{Options: l.load, Number: p.Number, Tokens: p.Tokens, Holders: p.Holders}})
	return err
}

// Ask implements System.
func (l *Library) Ask(_ context.Context, prompt int, _ string, times int) (Asked, error) {
	a, err := l.do(&subject.Command{Ask: &prompt, Times: times})
	if err != nil {
		return Asked{}, err
	}
	return Asked{Each: a.Each, CPU: a.CPU, Engines: a.Engines, Blocks: a.Held}, nil
}

func (l *Library) start(ctx context.Context) error {
	l.cmd = exec.CommandContext(ctx, l.command[0], l.command[1:]...)
	l.cmd.Stderr = os.Stderr
	in, err := l.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("starting %s: %w", l.name, err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting %s: %w", l.name, err)
	}
	if err := l.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", l.name, err)
	}
	l.in, l.send, l.receive = in, json.NewEncoder(in), json.NewDecoder(out)
	return nil
}

func (l *Library) do(c *subject.Command) (*subject.Answer, error) {
	var a subject.Answer
	if err := l.send.Encode(c); err != nil {
		return nil, fmt.Errorf("asking %s: %w", l.name, err)
	}
	if err := l.receive.Decode(&a); err != nil {
		return nil, fmt.Errorf("%s ended: %w", l.name, err)
	}
	if a.Error != "" {
		return nil, fmt.Errorf("%s: %s", l.name, a.Error) //nolint:err113 // the words of another process
	}
	return &a, nil
}

// Close implements System: the process ends with its input.
func (l *Library) Close() error {
	if l.cmd == nil {
		return nil
	}
	cmd := l.cmd
	l.cmd = nil
	if err := errors.Join(l.in.Close(), cmd.Wait()); err != nil {
		return fmt.Errorf("ending %s: %w", l.name, err)
	}
	return nil
}
