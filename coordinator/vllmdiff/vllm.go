package vllmdiff

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

//go:embed answer.py
var answerScript string

// VLLM is a running answer.py.
type VLLM struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
}

// StartVLLM starts the script under a Python interpreter that has vLLM. The
// caller closes it.
func StartVLLM(ctx context.Context, python string) (*VLLM, error) {
	v := &VLLM{cmd: exec.CommandContext(ctx, python, "-c", answerScript)}
	v.cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1")
	v.cmd.Stderr = &v.stderr
	in, err := v.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("vllmdiff: %w", err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("vllmdiff: %w", err)
	}
	v.in, v.out = in, bufio.NewScanner(out)
	v.out.Buffer(nil, 16<<20)
	if err := v.cmd.Start(); err != nil {
		return nil, fmt.Errorf("vllmdiff: starting %s: %w", python, err)
	}
	return v, nil
}

// Send sends a case; answers come in the order of sending, some time after.
func (v *VLLM) Send(c *Case) error { return v.send(c, "\n") }

// SendLast is Send that asks for every answer that is still owed.
func (v *VLLM) SendLast(c *Case) error { return v.send(c, " \n") }

// Ask sends a case and waits for its answer; nothing else may be under way.
func (v *VLLM) Ask(c *Case) (string, error) {
	if err := v.send(c, " \n"); err != nil {
		return "", err
	}
	return v.Receive()
}

func (v *VLLM) send(c *Case, end string) error {
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("vllmdiff: %w", err)
	}
	if _, err := v.in.Write(append(line, end...)); err != nil {
		return fmt.Errorf("vllmdiff: sending a case: %w", err)
	}
	return nil
}

// Receive returns the next answer.
func (v *VLLM) Receive() (string, error) {
	if v.out.Scan() {
		return v.out.Text(), nil
	}
	err := v.out.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return "", fmt.Errorf("vllmdiff: vLLM gave no answer: %w", errors.Join(err, v.Close()))
}

// Close ends the script and waits for it.
func (v *VLLM) Close() error {
	if v.cmd.ProcessState != nil {
		return nil
	}
	closeErr := v.in.Close()
	if err := v.cmd.Wait(); err != nil {
		return fmt.Errorf("vllmdiff: answer.py: %w\n%s", err, v.stderr.String())
	}
	return closeErr
}
