package lint

import (
	"fmt"
	"slices"
	"strings"
)

// Module is our module path.
const Module = "github.com/mooncake-sidecar/sidecar"

// Package is what the import rules read of a package.
type Package struct {
	// Path is relative to the module for ours (lookupd), else the import path.
	Path string
	// Ours: the package is in this module.
	Ours bool
	// Standard: it is in the standard library.
	Standard bool
	// Cgo: it has files that import "C".
	Cgo bool
	// Imports are its direct imports without those of tests, named like Path.
	Imports []string
}

// The layers. A path stands for itself and, ending in a slash, for all below.
var (
	// pure packages compute: no I/O, no clock, nothing of ours but each other.
	pure = []string{"internal/kv", "internal/index", "internal/evict", "internal/missratio", "internal/jobqueue", "internal/topology", "internal/wire", "coordinator", "connector", "conductor/kvevents", "conductor/prefixindex", "conductor/follow", "conductor/scheduler", "conductor/contract", "conductor/enginehash"}
	// roles use pure packages and the store's interface.
	roles = []string{"lookupd/", "worker", "store/embedded/", "store/mooncake/", "conductor/"}
	// edges touch the operating system, devices and C libraries.
	edges = []string{"internal/zmqx", "internal/unixmsg", "internal/shm", "internal/hostdev", "internal/proc", "internal/dl", "internal/cuda/", "internal/cudadev", "internal/gpu", "internal/diskio", "internal/mooncakec"}
	// cgoHomes may have cgo files of their own, or wrap a module that has.
	cgoHomes = []string{"internal/zmqx", "internal/dl", "internal/cuda", "internal/gpu", "internal/mooncakec"}
	// pureBans are the standard packages that would let a pure package do I/O.
	pureBans = []string{"os", "os/exec", "os/signal", "net", "net/http", "syscall", "unsafe", "log", "log/slog"}
	// soleImporters of modules.
	soleImporters = map[string][]string{
		"github.com/pebbe/zmq4":       {"internal/zmqx"},
		"github.com/urfave/cli/v2":    {"cmd/"},
		"github.com/NVIDIA/go-nvml/":  {"internal/gpu"},
		"google.golang.org/grpc":      {"store/embedded/", "internal/daemon", "internal/admin/", "internal/unary", "conductor/api/"},
		"github.com/prometheus/":      {"internal/metrics"},
		"gopkg.in/yaml.v3":            {"internal/config"},
		"github.com/ugorji/go/codec":  {"conductor/kvevents"},
		"github.com/stretchr/testify": {},
		"github.com/HdrHistogram/":    {"bench/replay/record"},
	}
)

// within tells whether a path is one of list.
func within(path string, list []string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return path == strings.TrimSuffix(entry, "/") || strings.HasSuffix(entry, "/") && strings.HasPrefix(path, entry)
	})
}

// CheckImports returns what breaks the import rules.
func CheckImports(packages []Package) []string {
	graph := map[string]*Package{}
	for i := range packages {
		graph[packages[i].Path] = &packages[i]
	}
	var faults []string
	for i := range packages {
		p := &packages[i]
		if !p.Ours {
			continue
		}
		for _, imported := range p.Imports {
			if why := badImport(p, graph, imported); why != "" {
				faults = append(faults, fmt.Sprintf("%s imports %s: %s", p.Path, imported, why))
			}
		}
		if p.Cgo && !within(p.Path, cgoHomes) {
			faults = append(faults, fmt.Sprintf("%s has cgo files: only %v may", p.Path, cgoHomes))
		}
		if within(p.Path, pure) || within(p.Path, roles) {
			if chain := cgoChain(graph, p.Path, map[string]bool{}); chain != nil {
				faults = append(faults, fmt.Sprintf("%s must build without cgo: %s", p.Path, strings.Join(chain, " -> ")))
			}
		}
	}
	return faults
}

// badImport says why a package may not have that import, "" when it may.
func badImport(p *Package, graph map[string]*Package, imported string) string {
	for module, allowed := range soleImporters {
		if within(imported, []string{module, strings.TrimSuffix(module, "/") + "/"}) && !within(p.Path, allowed) {
			return fmt.Sprintf("only %v may", allowed)
		}
	}
	target := graph[imported]
	ours := target != nil && target.Ours
	switch {
	case within(p.Path, pure) && ours && !within(imported, pure):
		return "a pure package uses none but pure ones of ours"
	case within(p.Path, pure) && !ours && slices.Contains(pureBans, imported):
		return "a pure package does no I/O"
	case within(p.Path, roles) && within(imported, roles) && !within(imported, pure) && !sameRole(p.Path, imported):
		return "roles do not import each other"
	case within(p.Path, roles) && within(imported, edges):
		return "a role declares what it needs of an edge; internal/daemon joins them"
	case within(imported, edges) && !within(p.Path, edges) && !within(p.Path, []string{"internal/daemon", "bench/", "cmd/mooncake-bench"}):
		return "only internal/daemon sees edges"
	case ours && within(imported, []string{"cmd/"}) && !within(p.Path, []string{"cmd/"}):
		return "nothing imports a command"
	case ours && imported == "internal/daemon" && !within(p.Path, []string{"cmd/"}):
		return "only commands import the composition"
	}
	return ""
}

// sameRole tells whether both packages are parts of one role.
func sameRole(a, b string) bool {
	for _, role := range roles {
		if within(a, []string{role}) && within(b, []string{role}) {
			return true
		}
	}
	return false
}

// cgoChain returns how a package comes to need cgo outside the standard library,
// nil if it does not.
func cgoChain(graph map[string]*Package, path string, seen map[string]bool) []string {
	p := graph[path]
	if p == nil || p.Standard || seen[path] {
		return nil
	}
	seen[path] = true
	if p.Cgo {
		return []string{path}
	}
	for _, imported := range p.Imports {
		if chain := cgoChain(graph, imported, seen); chain != nil {
			return append([]string{path}, chain...)
		}
	}
	return nil
}
