package suite

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/mooncake-sidecar/sidecar/bench/page"
)

// WriteHTML writes a page that opens without a network.
func (r *Report) WriteHTML(out io.Writer) error {
	p := page.Page{
		Title: "Benchmarks of mooncake-sidecar", Lead: []string{r.sentence()}, Soft: r.Environment.sentences(r),
		Tables: []page.Table{r.overview()},
	}
	if words := r.beside(); words != "" {
		p.Lead = append(p.Lead, words)
	}
	if missed := r.missed(); len(missed.Rows) > 0 {
		p.Sections = append(p.Sections, page.Section{Title: "Missed", Tables: []page.Table{missed}})
	}
	for i := range r.Entries {
		p.Sections = append(p.Sections, r.Entries[i].sections()...)
	}
	return p.Write(out)
}

func (e *Environment) sentences(r *Report) []string {
	virtual := ""
	if e.Virtual {
		virtual = ", a virtual machine"
	}
	versions := []string{"mooncake-bench " + e.Version, e.Go}
	if e.Commit != "" {
		versions[0] += " of " + e.Commit
	}
	if e.Python != "" {
		versions = append(versions, "Python "+e.Python)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Packages)) {
		versions = append(versions, name+" "+e.Packages[name])
	}
	return []string{
		fmt.Sprintf("%s, %d cores, %d GiB%s; %s, Linux %s; load average %s at the begin", e.CPUModel, e.CPUs, e.MemoryGiB, virtual, e.System, e.Kernel, e.Load),
		strings.Join(versions, ", "),
		fmt.Sprintf("%s; budget: %s. Values are medians unless they say otherwise. Times beside other work are longer than on a quiet machine; ratios are of figures taken by turns.", r.Begin.Format("2006-01-02 15:04 MST"), r.Budget),
	}
}

// overview is a row for each part.
func (r *Report) overview() page.Table {
	t := page.Table{Columns: []string{"benchmark", "", "seconds", "targets met", "missed", "other work, cores"}}
	for i := range r.Entries {
		e := &r.Entries[i]
		met, missed := e.count()
		state := page.Cell{Text: string(e.State)}
		if e.State == Failed || e.State == Stopped {
			state.Mark = page.Bad
		}
		row := []page.Cell{{Text: e.Title, Link: "part-" + e.Name}, state, {}, {}, {}, {}}
		if e.Load != nil {
			row[2].Text, row[5].Text = fmt.Sprintf("%.0f", e.Seconds), fmt.Sprintf("%.2f", e.Load.OtherCores)
			if e.Load.OtherCores > quiet {
				row[5].Mark = page.Bad
			}
		}
		if met > 0 {
			row[3] = page.Cell{Text: fmt.Sprint(met), Mark: page.Good}
		}
		if missed > 0 {
			row[4] = page.Cell{Text: fmt.Sprint(missed), Mark: page.Bad}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// missed are all targets that were, on one place.
func (r *Report) missed() page.Table {
	t := page.Table{Columns: []string{"what", "benchmark", "is", "target"}}
	for i := range r.Entries {
		e := &r.Entries[i]
		if e.Found == nil {
			continue
		}
		for j := range e.Figures {
			f := &e.Figures[j]
			for k := range f.Targets {
				if target := &f.Targets[k]; !target.Met {
					t.Rows = append(t.Rows, []page.Cell{{Text: f.Name}, {Text: e.Name, Link: "part-" + e.Name}, {Text: withUnit(target.Value, unitOf(f, target))}, {Text: target.String(), Mark: page.Bad}})
				}
			}
		}
	}
	return t
}

// sections show one part; the first has its figures.
func (e *Entry) sections() []page.Section {
	s := page.Section{ID: "part-" + e.Name, Title: e.Title}
	if len(e.Command) > 0 {
		s.Soft = append(s.Soft, strings.Join(e.Command, " "))
	}
	if e.Load != nil {
		s.Soft = append(s.Soft, fmt.Sprintf("%.0f s; %s", e.Seconds, e.Load))
	}
	if e.State != Done {
		why, rest, more := strings.Cut(e.Why, "\n")
		s.Text = append(s.Text, strings.TrimSpace(strings.ToUpper(string(e.State[:1]))+string(e.State[1:])+": "+why))
		if more {
			s.Faults = append(s.Faults, page.List{Title: "the last of what it said", Lines: strings.Split(rest, "\n")})
		}
		return []page.Section{s}
	}
	if len(e.Figures) > 0 {
		s.Tables = append(s.Tables, figuresTable(e.Figures))
	}
	s.Notes, s.Plots = e.Notes, e.Plots
	if len(e.Files) > 0 {
		s.Notes = append(slices.Clone(s.Notes), "Files beside this page: "+strings.Join(e.Files, ", "))
	}
	return append([]page.Section{s}, e.Sections...)
}

// figuresTable leaves out columns that no figure has anything for.
func figuresTable(figures []Figure) page.Table {
	columns := []struct {
		name string
		cell func(*Figure) page.Cell
	}{
		{"", func(f *Figure) page.Cell { return page.Cell{Text: f.Name} }},
		{"value", func(f *Figure) page.Cell { return page.Cell{Text: withUnit(f.Value, f.Unit)} }},
		{"spread", func(f *Figure) page.Cell { return page.Cell{Text: f.Spread.text()} }},
		{"samples", func(f *Figure) page.Cell {
			if f.Samples == 0 {
				return page.Cell{}
			}
			return page.Cell{Text: fmt.Sprint(f.Samples)}
		}},
		{"ratio", func(f *Figure) page.Cell {
			if f.Ratio == nil {
				return page.Cell{}
			}
			return page.Cell{Text: strings.TrimSpace(fmt.Sprintf("%s to %s %s", digits(f.Ratio.Value), f.Ratio.To, f.Ratio.Spread.text()))}
		}},
		{"target", func(f *Figure) page.Cell {
			c := page.Cell{Mark: page.Good}
			var words []string
			for i := range f.Targets {
				words = append(words, f.Targets[i].String())
				if !f.Targets[i].Met {
					c.Mark = page.Bad
				}
			}
			c.Text = strings.Join(words, "; ")
			return c
		}},
	}
	t := page.Table{Rows: make([][]page.Cell, len(figures))}
	for _, column := range columns {
		cells, used := make([]page.Cell, len(figures)), false
		for i := range figures {
			cells[i] = column.cell(&figures[i])
			used = used || cells[i].Text != ""
		}
		if !used {
			continue
		}
		t.Columns = append(t.Columns, column.name)
		for i := range figures {
			t.Rows[i] = append(t.Rows[i], cells[i])
		}
	}
	return t
}

// text is the range, or nothing.
func (s *Spread) text() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("[%s, %s] %s", digits(s.Low), digits(s.High), s.Kind)
}
