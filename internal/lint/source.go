package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// maxLines is the hard limit of a file.
const maxLines = 600

// pureClock are the functions by which a pure package would look at the clock.
var pureClock = map[string]bool{
	"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true, "Tick": true, "NewTimer": true, "NewTicker": true,
}

// CheckFile returns what breaks the rules for files. path is relative to the
// module's root, with slashes.
func CheckFile(path string, source []byte) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	var faults []string
	fault := func(at token.Pos, format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s: %s", files.Position(at), fmt.Sprintf(format, args...)))
	}
	if n := bytes.Count(source, []byte("\n")); n > maxLines {
		fault(file.Pos(), "%d lines, at most %d", n, maxLines)
	}
	test := strings.HasSuffix(path, "_test.go")
	for _, spec := range file.Imports {
		name := strings.TrimSuffix(strings.TrimSuffix(path, ".go"), "_test")
		if (spec.Path.Value == `"unsafe"` || spec.Path.Value == `"C"`) && !strings.HasSuffix(name, "_unsafe") {
			fault(spec.Pos(), "import of %s outside a *_unsafe.go file", spec.Path.Value)
		}
	}
	if !test {
		checkCalls(path, file, fault)
		checkDeclarations(file, fault)
	}
	return faults, nil
}

// checkCalls looks for functions that are not to be used.
func checkCalls(path string, file *ast.File, fault func(token.Pos, string, ...any)) {
	dir := path[:max(strings.LastIndexByte(path, '/'), 0)]
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch name := pkg.Name + "." + selector.Sel.Name; {
		case name == "time.After" || name == "time.Tick":
			fault(node.Pos(), "%s can't be stopped; use a timer", name)
		case pkg.Name == "time" && pureClock[selector.Sel.Name] && within(dir, pure):
			fault(node.Pos(), "%s in a pure package; take the time from the caller", name)
		case (name == "os.Exit" || strings.HasPrefix(name, "log.Fatal")) && !within(dir, []string{"cmd/"}):
			fault(node.Pos(), "%s outside cmd", name)
		}
		return true
	})
}

// checkDeclarations asks for comments on what is exported, and for no init.
func checkDeclarations(file *ast.File, fault func(token.Pos, string, ...any)) {
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			switch {
			case d.Name.Name == "init" && d.Recv == nil:
				fault(d.Pos(), "an init function: packages do nothing when they are loaded")
			case d.Name.IsExported() && d.Doc == nil && exportedReceiver(d):
				fault(d.Pos(), "%s has no comment", d.Name.Name)
			}
		case *ast.GenDecl:
			checkGroup(d, fault)
		}
	}
}

// checkGroup asks for comments on exported types, constants and variables. A
// comment on the group serves its constants and variables.
func checkGroup(d *ast.GenDecl, fault func(token.Pos, string, ...any)) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
				fault(s.Pos(), "%s has no comment", s.Name.Name)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if name.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
					fault(s.Pos(), "%s has no comment", name.Name)
				}
			}
		}
	}
}

// exportedReceiver tells whether a function is one, or a method of an exported
// type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	kind := d.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	if generic, ok := kind.(*ast.IndexExpr); ok {
		kind = generic.X
	}
	name, ok := kind.(*ast.Ident)
	return ok && name.IsExported()
}
