package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// Places, from the repository's root.
const (
	pagePath = "docs/configuration.md"
	shimPath = "pyshim/mooncake_sidecar/config.py"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	page, err := page(root)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, pagePath), []byte(page), 0o644) //nolint:gosec // a page for all to read
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// page makes the reference. root is the repository's.
func page(root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, shimPath))
	if err != nil {
		return "", err
	}
	keys, without, err := readShim(string(source))
	if err != nil {
		return "", fmt.Errorf("%s: %w", shimPath, err)
	}
	var b strings.Builder
	b.WriteString(head)
	b.WriteString("\n## The connector\n\n" + connectorHead + "\n| key | type | default | |\n|---|---|---|---|\n")
	for _, k := range keys {
		row(&b, code(k.name), k.typ, code(k.def), k.help)
	}
	b.WriteString("\nThese in-tree keys are accepted and change nothing here:\n\n| key | why |\n|---|---|\n")
	for _, k := range without {
		row(&b, code(k.name), k.help)
	}
	b.WriteString("\n## The daemons\n\n" + daemonsHead)
	fields := slices.Concat((&config.LookupdConfig{}).Fields(), (&config.WorkerConfig{}).Fields(), (&config.ConductorConfig{}).Fields())
	for _, s := range []struct{ section, title, text string }{
		{config.SectionCommon, "All daemons", "At the top of the file."},
		{config.SectionLookupd, "mooncake-lookupd", "In section `lookupd`."},
		{config.SectionWorker, "mooncake-worker", "In section `worker`."},
		{config.SectionConductor, "mooncake-conductor", "In section `conductor`; see [conductor.md](conductor.md). Mooncake Conductor's file and variables are read, too, behind all of these."},
	} {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| key | flag | variable | type | default | |\n|---|---|---|---|---|---|\n", s.title, s.text)
		seen := map[string]bool{}
		for i := range fields {
			if f := &fields[i]; f.Section == s.section && !seen[f.Key] {
				seen[f.Key] = true
				fieldRow(&b, f)
			}
		}
	}
	b.WriteString(tail)
	return b.String(), nil
}

func fieldRow(b *strings.Builder, f *config.Field) {
	key, help := code(f.Key), strings.ReplaceAll(f.Help, "`", "")
	if f.NotInFile {
		key = "not in a file"
	}
	if f.Reloads {
		help += "; can be changed at run time"
	}
	row(b, key, code("--"+f.Flag()), code(f.Env()), f.Type, f.Default, help)
}

// code marks what is written literally; nothing stays nothing.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

func row(b *strings.Builder, cells ...string) {
	for i := range cells {
		cells[i] = strings.NewReplacer("|", `\|`, "<uid>", "&lt;uid&gt;").Replace(cells[i])
	}
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
