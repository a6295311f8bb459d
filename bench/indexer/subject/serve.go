package subject

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// Indexer is what is measured.
type Indexer interface {
	// Reset forgets everything. threads is how many may work from now on.
	Reset(threads int) error
	// Store takes batches, and returns when all can be asked for.
	Store(batches []workload.Batch) error
	// Prepare adds a prompt to those that can be asked for, in the form that the indexer
	// wants. They are numbered from 0 on; Reset keeps them.
	Prepare(tokens []uint32)
	// Ask returns how many engines hold something of a prompt, and the fewest blocks that
	// one of them holds.
	Ask(prompt int) (engines, blocks int, err error)
}

// Command is one line.
type Command struct {
	// Load resets, and loads this.
	Load    *workload.Options `json:"load,omitempty"`
	Threads int               `json:"threads,omitempty"`
	// Prompt is prepared, and stored for its holders.
	Prompt *Prompt `json:"prompt,omitempty"`
	// Ask asks for the prompt of that number, Times times.
	Ask   *int `json:"ask,omitempty"`
	Times int  `json:"times,omitempty"`
}

// Prompt is one to be asked for, see workload.Options.Prompt.
type Prompt struct {
	Options         workload.Options
	Number          uint32
	Tokens, Holders int
}

// Answer to a command.
type Answer struct {
	// Blocks that were loaded, and the time and the processor time that it took.
	Blocks  int           `json:"blocks,omitempty"`
	Took    time.Duration `json:"took,omitempty"`
	CPU     time.Duration `json:"cpu,omitempty"`
	Heap    int64         `json:"heap,omitempty"` // bytes, more than before
	Engines int           `json:"engines"`        // Ask's answer
	Held    int           `json:"held"`
	// Each is the time of each question.
	Each  []time.Duration `json:"each,omitempty"`
	Error string          `json:"error,omitempty"`
}

// Serve answers commands until their end.
func Serve(in io.Reader, out io.Writer, indexer Indexer) error {
	commands, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var c Command
		if err := commands.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a command: %w", err)
		}
		a, err := do(&c, indexer)
		if err != nil {
			a = &Answer{Error: err.Error()}
		}
		if err := answers.Encode(a); err != nil {
			return fmt.Errorf("writing an answer: %w", err)
		}
	}
}

func do(c *Command, indexer Indexer) (*Answer, error) {
	switch {
	case c.Load != nil:
		return load(c, indexer)
	case c.Prompt != nil:
		p := c.Prompt
		tokens, batches := p.Options.Prompt(p.Number, p.Tokens, p.Holders)
		indexer.Prepare(tokens)
		return &Answer{}, indexer.Store(batches)
	case c.Ask != nil:
		a := &Answer{Each: make([]time.Duration, c.Times)}
		busy := processTime()
		for i := range a.Each {
			var err error
			began := time.Now()
			a.Engines, a.Held, err = indexer.Ask(*c.Ask)
			a.Each[i] = time.Since(began)
			if err != nil {
				return nil, err
			}
		}
		a.CPU = processTime() - busy
		return a, nil
	}
	return nil, errors.New("no command")
}

// atOnce is how many batches are made before they are stored.
const atOnce = 1024

func load(c *Command, indexer Indexer) (*Answer, error) {
	if err := c.Load.Validate(); err != nil {
		return nil, err
	}
	if c.Threads < 1 {
		return nil, errors.New("threads must be positive")
	}
	runtime.GOMAXPROCS(c.Threads)
	if err := indexer.Reset(c.Threads); err != nil {
		return nil, err
	}
	before := heapBytes()
	a := &Answer{Blocks: c.Load.Held()}
	var batches []workload.Batch
	store := func() error {
		busy, began := processTime(), time.Now()
		err := indexer.Store(batches)
		a.Took += time.Since(began)
		a.CPU += processTime() - busy
		batches = batches[:0]
		return err
	}
	for b := range c.Load.All() {
		if batches = append(batches, b); len(batches) == atOnce {
			if err := store(); err != nil {
				return nil, err
			}
		}
	}
	if err := store(); err != nil {
		return nil, err
	}
	clear(batches[:cap(batches)])
	a.Heap = heapBytes() - before
	return a, nil
}

// heapBytes is what is in use.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools had kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// processTime is the processor time of this process, of garbage collection, too.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
