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
	"runtime"
	"slices"
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
	alive   context.Context // while the service is to run, and runs
	ended   chan struct{}   // closed when it does not
	url     string
	engines *publishers
	load    workload.Options
	marks   uint32 // see mark
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
	var err error
	if s.engines, err = newPublishers(s.load.Engines); err != nil {
		return err
	}
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
	alive, give := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	s.alive, s.ended = alive, ended
	go func() {
		defer close(ended)
		give(fmt.Errorf("%s (log in %s): %w", s.Name(), folder, errors.Join(errEnded, cmd.Wait())))
	}()
	for engine, endpoint := range s.engines.endpoints {
		path, body := s.dialect.Register(engine, endpoint, s.load.BlockTokens)
		if err := s.until(soon, "takes engines", func() (bool, error) {
			_, err := s.post(alive, path, "application/json", body)
			return err == nil, nil
		}); err != nil {
			return err
		}
	}
	if err := s.engines.subscribed(alive); err != nil {
		return err
	}
	// The first message of an engine may be heard late: a service may ask for more before
	// it takes it.
	mark, err := s.mark()
	if err != nil {
		return err
	}
	return s.heard(mark, soon)
}

// errEnded: a service ended that is needed.
var errEnded = errors.New("the service has ended")

// firstMark is the number of the first prompt of one block by which it is seen how far a
// service has got.
const firstMark = 1 << 31

// mark sends a prompt of one block behind all that was sent, as every engine: when it can be
// asked for, so can that.
func (s *Service) mark() (prompt []uint32, err error) {
	prompt, batches := s.load.Prompt(firstMark+s.marks, s.load.BlockTokens, s.load.Engines)
	s.marks++
	return prompt, s.engines.send(batches)
}

// How often it is asked for a mark: rarely while there is more to do behind it.
const (
	soon  = 2 * time.Millisecond
	later = 10 * time.Millisecond
)

// heard returns when a mark is known of every engine.
func (s *Service) heard(mark []uint32, every time.Duration) error {
	path, contentType, body := s.dialect.Question(s.Forms()[0], mark, s.load.BlockTokens)
	// Both services say it in these words. To read an answer whole would take longer than to
	// give it.
	word := fmt.Appendf(nil, `"longest_matched":%d`, s.load.BlockTokens)
	return s.until(every, "stores what was sent", func() (bool, error) {
		answer, err := s.post(s.alive, path, contentType, body)
		if err != nil || bytes.Count(answer, word) < s.load.Engines {
			return false, err
		}
		held, err := s.dialect.Held(answer)
		return len(held) == s.load.Engines, err
	})
}

// Load implements System. All batches are made before the time begins, and sent as fast as
// the service lets them be: at most two windows wait for it.
func (s *Service) Load(ctx context.Context, load workload.Options, threads int) (Loaded, error) {
	if err := s.Close(); err != nil {
		return Loaded{}, err
	}
	s.load, s.prompts, s.marks = load, nil, 0
	if err := s.start(ctx, threads); err != nil {
		return Loaded{}, err
	}
	windows := slices.Collect(slices.Chunk(slices.Collect(load.All()), windowBatches))
	runtime.GC() // of what making them took: not while they are sent
	loaded := Loaded{Blocks: load.Held()}
	before, err := s.usage()
	if err != nil {
		return Loaded{}, err
	}
	began := time.Now()
	var last []uint32
	for _, window := range windows {
		if err := s.engines.send(window); err != nil {
			return Loaded{}, err
		}
		mark, err := s.mark()
		if err == nil && last != nil {
			err = s.heard(last, later)
		}
		if err != nil {
			return Loaded{}, err
		}
		last = mark
	}
	if last != nil {
		if err := s.heard(last, soon); err != nil {
			return Loaded{}, err
		}
	}
	loaded.Took = time.Since(began)
	now, err := s.usage()
	loaded.CPU, loaded.Sender, loaded.Bytes = now.busy-before.busy, now.sender-before.sender, now.resident-before.resident
	return loaded, err
}

// windowBatches is how many batches are sent between two marks: few enough that what waits is
// little of the memory, enough that marks are little of the time.
const windowBatches = 1 << 10

// usage is what a service and this process use.
type usage struct {
	busy, sender time.Duration
	resident     int64
}

func (s *Service) usage() (u usage, err error) {
	if u.busy, err = processTime(s.cmd.Process.Pid); err != nil {
		return u, err
	}
	if u.sender, err = processTime(os.Getpid()); err != nil {
		return u, err
	}
	u.resident, err = residentBytes(s.cmd.Process.Pid)
	return u, err
}

// Prompt implements System.
func (s *Service) Prompt(_ context.Context, p Prompt) error {
	tokens, batches := s.load.Prompt(p.Number, p.Tokens, p.Holders)
	s.prompts = append(s.prompts, tokens)
	if err := s.engines.send(batches); err != nil {
		return err
	}
	mark, err := s.mark()
	if err != nil {
		return err
	}
	return s.heard(mark, soon)
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

// until waits until something is so, which it looks for again and again.
func (s *Service) until(every time.Duration, what string, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(s.alive, patience)
	defer cancel()
	tick := time.NewTicker(every)
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
			return fmt.Errorf("waiting until %s %s: %w", s.Name(), what, context.Cause(ctx))
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
	<-s.ended // how it ends when it is told to is its own affair
	return err
}
