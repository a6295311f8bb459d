package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ErrPart: a part that there is not.
var ErrPart = errors.New("no such benchmark")

// State of a part in a report.
type State string

// The states.
const (
	Done    State = "done"
	Failed  State = "failed"
	NotHere State = "not possible here"
	NoTime  State = "no time left"
	// Stopped: the run was interrupted.
	Stopped State = "stopped"
	// Left out by the budget.
	LeftOut State = "not in this budget"
)

// Entry is a part in a report.
type Entry struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	State State  `json:"state"`
	// Why it was not done.
	Why     string   `json:"why,omitempty"`
	Command []string `json:"command,omitempty"`
	Seconds float64  `json:"seconds,omitempty"`
	Load    *Load    `json:"load,omitempty"`
	*Found
}

// Run runs parts and returns what they found. say gets a line of progress at a time.
// A part that fails does not fail the run; a cancelled context ends it with a report
// of what there is.
func Run(ctx context.Context, s *Setting, parts []Part, say func(line string)) (report *Report, err error) {
	if err := os.MkdirAll(s.Out, 0o755); err != nil {
		return nil, fmt.Errorf("making the report's folder: %w", err)
	}
	f, err := newFamily()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	r := &Report{Budget: s.Budget, Begin: time.Now(), Environment: environmentOf(ctx, s)}
	for i := range parts {
		p := &parts[i]
		e := Entry{Name: p.Name, Title: p.Title}
		say(fmt.Sprintf("[%d/%d] %s: %s", i+1, len(parts), p.Name, p.Title))
		e.do(ctx, s, p, f, time.Since(r.Begin), say)
		say(e.verdict())
		r.Entries = append(r.Entries, e)
	}
	r.Seconds = time.Since(r.Begin).Seconds()
	return r, nil
}

// do runs a part. gone is how much of the budget is spent.
func (e *Entry) do(ctx context.Context, s *Setting, p *Part, f *family, gone time.Duration, say func(string)) {
	limit := p.limit(s.Budget)
	if s.Budget == Quick {
		limit = min(limit, quickTotal-gone)
	}
	e.State, e.Why = p.possible(s)
	switch {
	case ctx.Err() != nil:
		e.State = Stopped
	case e.State != "":
	case limit < p.limit(s.Budget)/4:
		e.State, e.Why = NoTime, fmt.Sprintf("%v were left of the %v that it may take", max(0, limit).Round(time.Second), p.limit(s.Budget))
	default:
		e.run(ctx, s, p, f, limit, say)
	}
}

// possible returns a state and a reason where a part can't or shall not be run.
func (p *Part) possible(s *Setting) (State, string) {
	if p.FullOnly && s.Budget == Quick {
		return LeftOut, "it takes too long for a quick run"
	}
	for _, need := range p.Needs {
		if why := need(s); why != "" {
			return NotHere, why
		}
	}
	return "", ""
}

func (e *Entry) run(ctx context.Context, s *Setting, p *Part, f *family, limit time.Duration, say func(string)) {
	begin := time.Now()
	watching, look := context.WithCancel(ctx)
	loads := make(chan Load, 1)
	go func() {
		load, err := f.watch(watching)
		if err != nil {
			say(fmt.Sprintf("  the machine's load is not known: %v", err))
		}
		loads <- load
	}()
	e.Command = p.Command(s)
	next := time.Time{}
	c := &command{
		args: e.Command, dir: s.Root, output: s.Output(p.Name), log: s.File(p.Name + ".log"), limit: limit, family: f,
		environment: []string{"MOONCAKE_SIDECAR_PYTHON=" + s.Python, "MOONCAKE_SIDECAR_TRACES=" + s.Traces, "PYTHONUNBUFFERED=1"},
		say: func(line string) {
			if now := time.Now(); now.After(next) {
				next = now.Add(sayPause)
				say(fmt.Sprintf("  %4.0f s of at most %.0f  %s", time.Since(begin).Seconds(), limit.Seconds(), line))
			}
		},
	}
	err := c.run(ctx)
	look()
	load := <-loads
	e.Seconds, e.Load = time.Since(begin).Seconds(), &load
	if err == nil {
		e.Found, err = p.Read(s)
	}
	switch {
	case err == nil:
		e.State = Done
		e.Files = append(e.Files, filepath.Base(c.output), filepath.Base(c.log))
	case ctx.Err() != nil:
		e.State = Stopped
	default:
		e.State, e.Why = Failed, err.Error()
	}
}

// sayPause is between lines of progress of one part.
const sayPause = 3 * time.Second

// verdict is one line on an entry.
func (e *Entry) verdict() string {
	if e.State != Done {
		why, _, _ := strings.Cut(e.Why, "\n")
		return fmt.Sprintf("  %s %s", strings.ToUpper(string(e.State)), why)
	}
	met, missed := e.count()
	return fmt.Sprintf("  done in %.0f s: %d figures; %d targets met, %d missed", e.Seconds, len(e.Figures), met, missed)
}

// count counts targets.
func (e *Entry) count() (met, missed int) {
	if e.Found == nil {
		return 0, 0
	}
	for i := range e.Figures {
		for _, t := range e.Figures[i].Targets {
			if t.Met {
				met++
			} else {
				missed++
			}
		}
	}
	return met, missed
}

// Choose returns the parts of some names, all of them without any.
func Choose(names []string) ([]Part, error) {
	all := All()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Part
	for _, name := range names {
		i := slices.IndexFunc(all, func(p Part) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: %q; there are %s", ErrPart, name, strings.Join(Names(), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// Names of all parts.
func Names() []string {
	var names []string
	for _, p := range All() {
		names = append(names, p.Name)
	}
	return names
}
