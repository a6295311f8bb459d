package command

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/admin"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// reloader reads the configuration of a running daemon again.
type reloader struct {
	// load reads it as at the start: the same file, flags and environment.
	load  func() (*config.Common, []config.Setting, error)
	level *slog.LevelVar

	mu      sync.Mutex
	current []config.Setting // guarded by mu: what the daemon runs with
}

// reload applies what can change at run time, and tells what can't. A
// configuration with a fault changes nothing.
func (r *reloader) reload() admin.Reloaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := admin.Reloaded{Applied: []string{}, Ignored: []string{}}
	common, settings, err := r.load()
	if err != nil {
		report.Error = err.Error()
		return report
	}
	for _, s := range settings {
		at := slices.IndexFunc(r.current, func(c config.Setting) bool { return c.Section == s.Section && c.Key == s.Key })
		if at < 0 || r.current[at].Value == s.Value {
			continue
		}
		change := fmt.Sprintf("%s: %s -> %s", s.Key, r.current[at].Value, s.Value)
		if !s.Reloads {
			report.Ignored = append(report.Ignored, change)
			continue
		}
		report.Applied = append(report.Applied, change)
		r.current[at] = s
	}
	// In any case: an operator may have set another level since.
	r.level.Set(mustLevel(common))
	return report
}

// settings returns what the daemon runs with.
func (r *reloader) settings() []config.Setting {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.current)
}
