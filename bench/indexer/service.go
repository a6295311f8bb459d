package indexer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// Service is an indexer behind sockets.
type Service struct {
	dialect Dialect
	folder  string // for files, logs among them
	starts  int

	cmd     *exec.Cmd
	url     string
	engines *publishers
	load    workload.Options
	windows uint32 // see stored
	prompts [][]uint32
	client  http.Client
}

var _ System = (*Service)(nil)

// NewService returns a service whose files go to a folder.
func NewService(d Dialect, folder string) *Service {
	return &Service{dialect: d, folder: folder}
}

// Name implements System.
func (s *Service) Name() string { return s.dialect.Name() }

// Forms implements System.
func (s *Service) Forms() []string { return s.dialect.Forms() }

// patience bounds what a service is waited for.
const patience = 2 * time.Minute

// start starts the service and its engines, and returns when it has heard each.
func (s *Service) start(ctx context.Context, threads int) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	s.starts++
	folder := filepath.Join(s.folder, s.Name()+"-"+strconv.Itoa(s.starts))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("making a folder for %s: %w", s.Name(), err)
	}
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		return fmt.Errorf("making a log for %s: %w", s.Name(), err)
	}
	defer log.Close()
	program, args, env := s.dialect.Command(folder, port, threads)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s (log in %s): %w", s.Name(), folder, err)
	}
	s.cmd, s.url = cmd, "http://127.0.0.1:"+strconv.Itoa(port)
	if s.engines, err = newPublishers(s.load.Engines); err != nil {
		return err
	}
	for engine, endpoint := range s.engines.endpoints {
		path, body := s.dialect.Register(engine, endpoint, s.load.BlockTokens)
		if err := s.until(ctx, "takes engines", func() (bool, error) {
			_, err := s.post(ctx, path, "application/json", body)
			return err == nil, nil
		}); err != nil {
			return err
		}
	}
	// A publisher does not know whether it is heard: each says something until it is.
	greeting, batches := s.load.Prompt(greetingNumber, s.load.BlockTokens, s.load.Engines)
	return s.until(ctx, "hears every engine", func() (bool, error) {
		for _, b := range batches {
			if err := s.engines.send(b.Engine, b.Payload); err != nil {
				return false, err
			}
		}
		held, err := s.ask(ctx, s.Forms()[0], greeting)
		return len(held) == s.load.Engines, err
	})
}

// Numbers of prompts of one block by which it is seen how far a service has got: the
// greeting's, and those of stored.
const (
	greetingNumber = 1 << 31
	windowNumber   = greetingNumber + 1
)

// stored returns when all that was sent can be asked for: when what is sent behind it
// can be, by every engine.
func (s *Service) stored(ctx context.Context) error {
	mark, batches := s.load.Prompt(windowNumber+s.windows, s.load.BlockTokens, s.load.Engines)
	s.windows++
	for _, b := range batches {
		if err := s.engines.send(b.Engine, b.Payload); err != nil {
			return err
		}
	}
	return s.until(ctx, "stores what was sent", func() (bool, error) {
		held, err := s.ask(ctx, s.Forms()[0], mark)
		return len(held) == s.load.Engines, err
	})
}

// Load implements System. Batches are sent as fast as they can be.
func (s *Service) Load(ctx context.Context, load workload.Options, threads int) (Loaded, error) {
	if err := s.Close(); err != nil {
		return Loaded{}, err
	}
	s.load, s.prompts, s.windows = load, nil, 0
	if err := s.start(ctx, threads); err != nil {
		return Loaded{}, err
	}
	loaded := Loaded{Blocks: load.Held()}
	resident, err := residentBytes(s.cmd.Process.Pid)
	if err != nil {
		return Loaded{}, err
	}
	var batches []workload.Batch
	store := func() error {
		busy, err := processTime(s.cmd.Process.Pid)
		if err != nil {
			return err
		}
		began := time.Now()
		for _, b := range batches {
			if err := s.engines.send(b.Engine, b.Payload); err != nil {
				return err
			}
		}
		if err := s.stored(ctx); err != nil {
			return err
		}
		loaded.Took += time.Since(began)
		now, err := processTime(s.cmd.Process.Pid)
		loaded.CPU += now - busy
		batches = batches[:0]
		return err
	}
	for b := range load.All() {
		if batches = append(batches, b); len(batches) == windowBatches {
			if err := store(); err != nil {
				return Loaded{}, err
			}
		}
	}
	if err := store(); err != nil {
		return Loaded{}, err
	}
	now, err := residentBytes(s.cmd.Process.Pid)
	loaded.Bytes = now - resident
	return loaded, err
}

// windowBatches is how many batches are sent before all are waited for: few enough that
// what waits is little of the memory, enough that waiting is little of the time.
const windowBatches = 2 << 10

// Prompt implements System.
func (s *Service) Prompt(ctx context.Context, p Prompt) error {
	tokens, batches := s.load.Prompt(p.Number, p.Tokens, p.Holders)
	s.prompts = append(s.prompts, tokens)
	for _, b := range batches {
		if err := s.engines.send(b.Engine, b.Payload); err != nil {
			return err
		}
	}
	return s.stored(ctx)
}

// Ask implements System. The question is written down before the time begins.
func (s *Service) Ask(ctx context.Context, prompt int, form string, times int) (Asked, error) {
	path, contentType, body := s.dialect.Question(form, s.prompts[prompt], s.load.BlockTokens)
	a := Asked{Each: make([]time.Duration, times)}
	busy, err := processTime(s.cmd.Process.Pid)
	if err != nil {
		return Asked{}, err
	}
	var answer []byte
	for i := range a.Each {
		var err error
		began := time.Now()
		answer, err = s.post(ctx, path, contentType, body)
		a.Each[i] = time.Since(began)
		if err != nil {
			return Asked{}, err
		}
	}
	now, err := processTime(s.cmd.Process.Pid)
	if err != nil {
		return Asked{}, err
	}
	a.CPU = now - busy
	held, err := s.dialect.Held(answer)
	if err != nil {
		return Asked{}, fmt.Errorf("%s answers %.200q: %w", s.Name(), answer, err)
	}
	for _, tokens := range held {
		if blocks := tokens / s.load.BlockTokens; a.Engines == 0 || blocks < a.Blocks {
			a.Blocks = blocks
		}
		a.Engines++
	}
	return a, nil
}

// ask asks for a prompt once.
func (s *Service) ask(ctx context.Context, form string, tokens []uint32) (map[string]int, error) {
	path, contentType, body := s.dialect.Question(form, tokens, s.load.BlockTokens)
	answer, err := s.post(ctx, path, contentType, body)
	if err != nil {
		return nil, err
	}
	return s.dialect.Held(answer)
}

// post sends a request; another answer than a good one is an error.
func (s *Service) post(ctx context.Context, path, contentType string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", s.Name(), err)
	}
	r.Header.Set("Content-Type", contentType)
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", s.Name(), err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", s.Name(), err)
	}
	if answer.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s%s: %s: %.200s", s.Name(), path, answer.Status, text) //nolint:err113 // the words of another process
	}
	return text, nil
}

// until waits until something is so; why not is in the error at the end of patience.
func (s *Service) until(ctx context.Context, what string, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		switch done, err := so(); {
		case err != nil && ctx.Err() == nil:
			return err
		case done:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s %s: %w", s.Name(), what, ctx.Err())
		case <-tick.C:
		}
	}
}

// Close implements System.
func (s *Service) Close() error {
	var err error
	if s.engines != nil {
		err = s.engines.close()
		s.engines = nil
	}
	if s.cmd == nil {
		return err
	}
	cmd := s.cmd
	s.cmd = nil
	s.client.CloseIdleConnections()
	kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }) // it may have ended
	defer kill.Stop()
	err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait() // how it ends when it is told to is its own affair
	return err
}
