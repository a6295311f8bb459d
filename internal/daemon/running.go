package daemon

import (
	"context"
	"path/filepath"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// Running asks every daemon of a runtime directory, empty for the default. What
// does not answer is left out.
func Running(ctx context.Context, dir string) []*Status {
	dir = existingDir(dir)
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	paths, _ := filepath.Glob(filepath.Join(dir, config.WorkerSocketPattern)) // a bad pattern finds none
	var all []*Status
	for _, path := range append([]string{filepath.Join(dir, config.LookupdSocket)}, paths...) {
		if s, err := probe(ctx, path); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// Dir returns the runtime directory that a configured one, or none, means.
func Dir(configured string) string { return existingDir(configured) }
