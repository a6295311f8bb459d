package report

import (
	"fmt"
	"io"

	"github.com/mooncake-sidecar/sidecar/bench/page"
)

// HTML writes a page of all tables and plots.
func HTML(out io.Writer, title string, tables []Table) error {
	p := page.Page{Title: title}
	for i := range tables {
		s := tables[i].Section()
		s.ID = fmt.Sprintf("%s-%d", tables[i].Name, i)
		p.Sections = append(p.Sections, s)
	}
	return p.Write(out)
}

// Section is the table on a page, without an ID.
func (t *Table) Section() page.Section {
	shown := page.Table{Columns: t.Columns}
	for _, row := range t.Rows {
		cells := make([]page.Cell, len(row))
		for i, c := range row {
			cells[i].Text = cell(c)
		}
		shown.Rows = append(shown.Rows, cells)
	}
	s := page.Section{Title: t.Name + ": " + t.Title, Text: []string{"Answers " + t.Answers + "."}, Tables: []page.Table{shown}, Notes: t.Notes, Plots: t.Plots}
	if t.Parameters != "" {
		s.Soft = []string{"With " + t.Parameters + "."}
	}
	return s
}
