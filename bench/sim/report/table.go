package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mooncake-sidecar/sidecar/bench/page"
)

// Table is what an experiment found.
type Table struct {
	// Name is the experiment's, Title a line about this table.
	Name  string `json:"name"`
	Title string `json:"title"`
	// Answers is the figure or table of a paper that this is beside.
	Answers string `json:"answers"`
	// Parameters are what the figures hold for.
	Parameters string `json:"parameters"`
	// Columns name what the rows have.
	Columns []string `json:"columns"`
	// Rows have strings, whole numbers and Numbers. nil is no value.
	Rows [][]any `json:"rows"`
	// Notes are what must be known to read it right.
	Notes []string    `json:"notes,omitempty"`
	Plots []page.Plot `json:"plots,omitempty"`
}

// Add appends a row.
//
// REQUIRES: as many cells as there are columns.
func (t *Table) Add(cells ...any) {
	if len(cells) != len(t.Columns) {
		panic(fmt.Sprintf("BUG: %d cells in a table of %d columns", len(cells), len(t.Columns)))
	}
	t.Rows = append(t.Rows, cells)
}

// Number is a value with the decimals that it is shown with.
type Number struct {
	Value    float64
	Decimals int
}

// MarshalJSON implements json.Marshaler: the value in full.
func (n Number) MarshalJSON() ([]byte, error) { return json.Marshal(n.Value) }

// String is the value as tables show it.
func (n Number) String() string { return fmt.Sprintf("%.*f", n.Decimals, n.Value) }

// Of returns a function that makes Numbers.
func Of(decimals int) func(float64) Number {
	return func(v float64) Number { return Number{v, decimals} }
}

// Spread is a mean over seeds with its deviation.
type Spread struct {
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"deviation"`
	Decimals  int     `json:"-"`
}

// String is the mean, with the deviation if there is any.
func (s Spread) String() string {
	if s.Deviation == 0 {
		return fmt.Sprintf("%.*f", s.Decimals, s.Mean)
	}
	return fmt.Sprintf("%.*f ±%.*f", s.Decimals, s.Mean, s.Decimals, s.Deviation)
}

func cell(v any) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(v)
}

// Text prints tables for a terminal.
func Text(out io.Writer, tables []Table) error {
	for i := range tables {
		t := &tables[i]
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s: %s\n", t.Name, t.Title)
		fmt.Fprintf(out, "answers %s\n", t.Answers)
		if t.Parameters != "" {
			fmt.Fprintf(out, "with %s\n", t.Parameters)
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, strings.Join(t.Columns, "\t")+"\t")
		for _, row := range t.Rows {
			for _, c := range row {
				fmt.Fprintf(w, "%s\t", cell(c))
			}
			fmt.Fprintln(w)
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("printing a table: %w", err)
		}
		for _, note := range t.Notes {
			fmt.Fprintf(out, "  * %s\n", note)
		}
	}
	return nil
}

// JSON prints a line for each table.
func JSON(out io.Writer, tables []Table) error {
	e := json.NewEncoder(out)
	for i := range tables {
		if err := e.Encode(&tables[i]); err != nil {
			return fmt.Errorf("printing a table: %w", err)
		}
	}
	return nil
}
