package lint

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// load lists our packages and all that they need.
func load(t *testing.T) []Package {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-f", `{{.ImportPath}}|{{.Standard}}|{{len .CgoFiles}}|{{join .Imports ","}}`, "./...")
	list.Dir = root
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []Package
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		if len(fields) != 4 {
			t.Fatalf("go list said %q", line)
		}
		p := Package{Path: shorten(fields[0]), Ours: strings.HasPrefix(fields[0], Module+"/"), Standard: fields[1] == "true", Cgo: fields[2] != "0"}
		for imported := range strings.SplitSeq(fields[3], ",") {
			p.Imports = append(p.Imports, shorten(imported))
		}
		packages = append(packages, p)
	}
	return packages
}

func shorten(path string) string { return strings.TrimPrefix(path, Module+"/") }

func TestImports(t *testing.T) {
	packages := load(t)
	for _, fault := range CheckImports(packages) {
		t.Error(fault)
	}
	// The rules would be silent about a layer that was renamed.
	for _, path := range []string{"internal/kv", "coordinator", "connector", "lookupd", "worker", "store/embedded", "internal/zmqx"} {
		if !slices.ContainsFunc(packages, func(p Package) bool { return p.Ours && p.Path == path }) {
			t.Errorf("package %s is named in the rules and does not exist", path)
		}
	}
}

// sources calls visit for every Go file of the module.
func sources(t *testing.T, visit func(path string, source []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "build" || name == "bin" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(relative), source)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	seen := 0
	sources(t, func(path string, source []byte) {
		seen++
		faults, err := CheckFile(path, source)
		if err != nil {
			t.Error(err)
		}
		for _, fault := range faults {
			t.Error(fault)
		}
	})
	if seen < 50 {
		t.Errorf("only %d files were looked at", seen)
	}
}

// TestNoLinkIsTracked keeps links out of the repository: a work tree whose
// environment is a link to another's must not hand that link to every clone.
func TestNoLinkIsTracked(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skipf("not a clone: %v", err)
	}
	listed, err := exec.Command("git", "-C", root, "ls-files", "--stage").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	if len(listed) == 0 {
		t.Fatal("git tracks nothing here")
	}
	for line := range strings.Lines(string(listed)) {
		if strings.HasPrefix(line, "120000 ") {
			t.Errorf("a link is tracked: %s", strings.TrimSpace(line))
		}
	}
}

func TestPackagesHaveComments(t *testing.T) {
	documented := map[string]bool{}
	sources(t, func(path string, source []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Error(err)
			return
		}
		dir := filepath.Dir(path)
		documented[dir] = documented[dir] || file.Doc != nil
	})
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

func TestImportRulesCatch(t *testing.T) {
	ours := func(path string, imports ...string) Package { return Package{Path: path, Ours: true, Imports: imports} }
	zmq := Package{Path: "github.com/pebbe/zmq4", Cgo: true}
	for name, packages := range map[string][]Package{
		"pure imports a role":    {ours("coordinator", "lookupd"), ours("lookupd")},
		"pure does I/O":          {ours("internal/kv", "net")},
		"role imports a role":    {ours("lookupd", "worker"), ours("worker")},
		"role imports the store": {ours("worker", "store/embedded/client"), ours("store/embedded/client")},
		"role imports an edge":   {ours("worker", "internal/shm"), ours("internal/shm")},
		"config sees an edge":    {ours("internal/config", "internal/shm"), ours("internal/shm")},
		"zmq elsewhere":          {ours("internal/daemon", zmq.Path), zmq},
		"cli outside cmd":        {ours("internal/daemon", "github.com/urfave/cli/v2")},
		"cgo in the open":        {{Path: "internal/daemon", Ours: true, Cgo: true}},
		"cgo by a detour":        {ours("connector", "example.com/a"), {Path: "example.com/a", Imports: []string{"example.com/b"}}, {Path: "example.com/b", Cgo: true}},
		"a command is imported":  {ours("internal/daemon", "cmd/internal/command"), ours("cmd/internal/command")},
		"composition imported":   {ours("worker", "internal/daemon"), ours("internal/daemon")},
	} {
		if len(CheckImports(packages)) == 0 {
			t.Errorf("%s: not caught", name)
		}
	}
	fine := []Package{
		ours("internal/daemon", "lookupd", "worker", "internal/zmqx", "store/embedded/client"), ours("internal/zmqx", zmq.Path), zmq,
		ours("lookupd", "coordinator", "store", "net", "time"), ours("coordinator", "internal/kv"), ours("store"), ours("worker"),
		ours("store/embedded/client", "store/embedded"), ours("store/embedded"), {Path: "net", Standard: true, Cgo: true},
		ours("internal/hostdev", "worker", "internal/shm"), ours("internal/shm"), ours("cmd/x", "internal/daemon", "github.com/urfave/cli/v2"),
	}
	if faults := CheckImports(fine); len(faults) != 0 {
		t.Errorf("caught what is fine: %q", faults)
	}
}

func TestFileRulesCatch(t *testing.T) {
	for name, c := range map[string]struct{ path, source string }{
		"unsafe":         {"worker/a.go", "package p\nimport \"unsafe\"\n"},
		"cgo":            {"worker/a.go", "package p\nimport \"C\"\n"},
		"unsafe in test": {"worker/a_test.go", "package p\nimport \"unsafe\"\n"},
		"time.After":     {"worker/a.go", "package p\nvar x = time.After(1)\n"},
		"clock":          {"coordinator/a.go", "package p\nvar x = time.Now()\n"},
		"os.Exit":        {"worker/a.go", "package p\nfunc f() { os.Exit(1) }\n"},
		"init":           {"worker/a.go", "package p\nfunc init() {}\n"},
		"bare func":      {"worker/a.go", "package p\nfunc F() {}\n"},
		"bare method":    {"worker/a.go", "package p\n// T is.\ntype T int\nfunc (t *T) F() {}\n"},
		"bare type":      {"worker/a.go", "package p\ntype T int\n"},
		"bare const":     {"worker/a.go", "package p\nconst C = 1\n"},
		"long":           {"worker/a.go", "package p\n" + strings.Repeat("\n", maxLines)},
	} {
		if faults, err := CheckFile(c.path, []byte(c.source)); err != nil || len(faults) != 1 {
			t.Errorf("%s: %q, %v, want one fault", name, faults, err)
		}
	}
	for name, c := range map[string]struct{ path, source string }{
		"unsafe at home": {"worker/a_unsafe.go", "package p\nimport \"unsafe\"\n"},
		"unsafe test":    {"worker/a_unsafe_test.go", "package p\nimport \"unsafe\"\n"},
		"clock of roles": {"worker/a.go", "package p\nvar x = time.Now()\n"},
		"exit of main":   {"cmd/x/main.go", "package p\nfunc f() { os.Exit(1) }\n"},
		"unexported":     {"worker/a.go", "package p\ntype t int\nfunc (t) F() {}\nfunc f() {}\n"},
		"generated":      {"worker/a.go", "// Code generated by x. DO NOT EDIT.\npackage p\nfunc F() {}\n"},
	} {
		if faults, err := CheckFile(c.path, []byte(c.source)); err != nil || len(faults) != 0 {
			t.Errorf("%s: %q, %v, want none", name, faults, err)
		}
	}
}
