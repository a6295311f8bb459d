package admin

import (
	"maps"
	"slices"
	"sync"
)

// Check tells what is wrong with one thing a daemon needs, "" when it is well.
// It must not wait for anything.
type Check func() (problem string)

// Readiness holds a daemon's checks. It is safe for concurrent use.
type Readiness struct {
	mu     sync.Mutex
	checks map[string]Check
	// spare checks are of what a daemon can do without.
	spare map[string]Check
}

// Set adds a check, or replaces the one of that name.
func (r *Readiness) Set(name string, check Check) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checks == nil {
		r.checks = map[string]Check{}
	}
	r.checks[name] = check
}

// SetProblem is Set with what is wrong now and until it is set again; "" for
// nothing.
func (r *Readiness) SetProblem(name, problem string) { r.Set(name, func() string { return problem }) }

// Spare adds a check of what the daemon can do without: it is ready without that,
// and degraded.
func (r *Readiness) Spare(name string, check Check) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spare == nil {
		r.spare = map[string]Check{}
	}
	r.spare[name] = check
}

// Verdict is what a check said.
type Verdict struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	// Degraded: it is not well, and the daemon does without.
	Degraded bool `json:"degraded,omitempty"`
	// Reason says what is wrong and what is waited for.
	Reason string `json:"reason,omitempty"`
}

// Verdicts runs the checks, sorted by name, the spare ones behind the others.
func (r *Readiness) Verdicts() (verdicts []Verdict, ready bool) {
	r.mu.Lock()
	checks, spare := maps.Clone(r.checks), maps.Clone(r.spare)
	r.mu.Unlock()
	ready = true
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		problem := checks[name]()
		ready = ready && problem == ""
		verdicts = append(verdicts, Verdict{Check: name, OK: problem == "", Reason: problem})
	}
	for _, name := range slices.Sorted(maps.Keys(spare)) {
		problem := spare[name]()
		verdicts = append(verdicts, Verdict{Check: name, OK: problem == "", Degraded: problem != "", Reason: problem})
	}
	return verdicts, ready
}
