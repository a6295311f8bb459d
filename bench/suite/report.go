package suite

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Report is a whole run.
type Report struct {
	Budget      Budget      `json:"budget"`
	Begin       time.Time   `json:"begin"`
	Seconds     float64     `json:"seconds"`
	Environment Environment `json:"environment"`
	Entries     []Entry     `json:"benchmarks"`
}

// WriteJSON writes one object.
func (r *Report) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// targets is how many there are of each answer.
func (r *Report) targets() (met, missed int) {
	for i := range r.Entries {
		a, b := r.Entries[i].count()
		met, missed = met+a, missed+b
	}
	return met, missed
}

// failed is how many parts did not end as they should.
func (r *Report) failed() (n int) {
	for i := range r.Entries {
		if s := r.Entries[i].State; s == Failed || s == Stopped || s == NoTime {
			n++
		}
	}
	return n
}

// Whole tells whether every part that is possible here was done.
func (r *Report) Whole() bool { return r.failed() == 0 }

// sentence says how it went.
func (r *Report) sentence() string {
	met, missed := r.targets()
	return fmt.Sprintf("%d targets met, %d missed; %d of %d benchmarks failed or had no time; %.0f s in all.", met, missed, r.failed(), len(r.Entries), r.Seconds)
}

// quiet is how many cores other work may use on a machine that counts as quiet.
const quiet = .1

// beside says what other work means for the figures, "" of a quiet machine.
func (r *Report) beside() string {
	most := 0.0
	for i := range r.Entries {
		if l := r.Entries[i].Load; l != nil {
			most = max(most, l.OtherCores)
		}
	}
	if most <= quiet {
		return ""
	}
	return fmt.Sprintf("Other work used up to %.1f of %d cores meanwhile: times beside it are longer than on a quiet machine, and a target of a time that was missed there says little.", most, r.Environment.CPUs)
}

// WriteText writes a table of the parts and what was missed.
func (r *Report) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nbenchmark\tstate\tseconds\tmet\tmissed\tother work, cores")
	for i := range r.Entries {
		e := &r.Entries[i]
		met, missed := e.count()
		load := ""
		if e.Load != nil {
			load = fmt.Sprintf("%.2f", e.Load.OtherCores)
		}
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%d\t%d\t%s\n", e.Name, e.State, e.Seconds, met, missed, load)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	for i := range r.Entries {
		e := &r.Entries[i]
		if e.Found == nil {
			continue
		}
		for j := range e.Figures {
			for _, t := range e.Figures[j].Targets {
				if !t.Met {
					fmt.Fprintf(out, "MISSED  %s: %s: %s, %s\n", e.Name, e.Figures[j].Name, withUnit(t.Value, unitOf(&e.Figures[j], &t)), t.String())
				}
			}
		}
	}
	if words := r.beside(); words != "" {
		fmt.Fprintln(out, words)
	}
	_, err := fmt.Fprintln(out, r.sentence())
	return err
}

// unitOf what a target is of.
func unitOf(f *Figure, t *Target) string {
	if t.Of == "ratio" {
		return ""
	}
	return f.Unit
}

func withUnit(v float64, unit string) string {
	if unit == "" {
		return digits(v)
	}
	return digits(v) + " " + unit
}
