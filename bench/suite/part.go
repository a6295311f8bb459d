package suite

import (
	"path/filepath"
	"time"
)

// Budget is how much time there is.
type Budget string

// The budgets.
const (
	// Quick takes less than a quarter of an hour on two cores: few rounds, and figures
	// that vary accordingly.
	Quick Budget = "quick"
	// Full takes hours.
	Full Budget = "full"
)

// quickTotal ends a quick run, whatever is left of it.
const quickTotal = 14*time.Minute + 30*time.Second

// Part is one benchmark.
type Part struct {
	// Name is its files' and what --only takes; Title a line for people.
	Name, Title string
	// Needs are checked before it begins.
	Needs []Need
	// Quick and Full are how long it may take.
	Quick, Full time.Duration
	// FullOnly: there is no quick form of it.
	FullOnly bool
	// Command is run in the repository; its standard output is kept in Output.
	Command func(s *Setting) []string
	// Read reads what the command wrote.
	Read func(s *Setting) (*Found, error)
}

// Setting is what parts go by.
type Setting struct {
	Budget Budget
	// Root is the repository, Out where results go, Binaries the daemons.
	Root, Out, Binaries string
	// Bench is the mooncake-bench to run, Python an interpreter with vLLM.
	Bench, Python string
	// Traces is the folder of Mooncake's public traces, or empty.
	Traces string
}

// Output of a part's command.
func (s *Setting) Output(part string) string { return filepath.Join(s.Out, part+".out") }

// File is where a part keeps a result.
func (s *Setting) File(name string) string { return filepath.Join(s.Out, name) }

func (s *Setting) trace(name string) string { return filepath.Join(s.Traces, name+"_trace.jsonl") }

// by returns the quick or the full value.
func by[T any](s *Setting, quick, full T) T {
	if s.Budget == Quick {
		return quick
	}
	return full
}

// limit of a part in a budget.
func (p *Part) limit(b Budget) time.Duration {
	if b == Quick {
		return p.Quick
	}
	return p.Full
}

// All returns the benchmarks in the order of the page.
func All() []Part {
	return []Part{
		daemons(), lookups(), clusterLookups(), datapaths(), microbenchmarks(), besideVLLM(), clusterCalls(),
		cachePolicies(), retentions(), simulator(), hooks(), hookSteps(), indexers(), routers(), gpu(), replays(), comparison(),
	}
}
