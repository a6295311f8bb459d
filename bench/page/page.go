package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed page.html
var text string

// Page is a title and sections.
type Page struct {
	Title string
	// Lead is what to know first, Soft what holds for all of it, in smaller words.
	Lead, Soft []string
	Tables     []Table
	Sections   []Section
}

// Section is text, tables and drawings under a heading. Whatever is empty is left
// out.
type Section struct {
	// ID is what links name; it must be unique on the page, or empty.
	ID, Title string
	Text      []string
	Soft      []string
	Tables    []Table
	Notes     []string
	// Faults are what went wrong.
	Faults []List
	Plots  []Plot
}

// Table has as many cells in each row as there are columns.
type Table struct {
	Columns []string
	Rows    [][]Cell
}

// Cell is text, and how it is to be taken.
type Cell struct {
	Text string
	Mark Mark
	// Link is the ID of a section.
	Link string
}

// Mark of a cell.
type Mark string

// The marks.
const (
	Plain Mark = ""
	Good  Mark = "good"
	Bad   Mark = "bad"
)

// List is lines that are shown when asked for.
type List struct {
	Title string
	Lines []string
}

// Text makes plain cells.
func Text(words ...string) []Cell {
	cells := make([]Cell, len(words))
	for i, w := range words {
		cells[i].Text = w
	}
	return cells
}

// Write writes the page.
func (p *Page) Write(out io.Writer) error {
	draw := func(plot Plot) template.HTML { return template.HTML(plot.SVG()) } // SVG escapes
	t, err := template.New("page").Funcs(template.FuncMap{"svg": draw}).Parse(text)
	if err != nil {
		return fmt.Errorf("the page's template: %w", err)
	}
	if err := t.Execute(out, p); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}
