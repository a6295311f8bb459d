package report

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// style of the page; it asks nothing of the network.
const style = `body{font-family:sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0}td,th{padding:.15em .7em;border-bottom:1px solid #ddd;text-align:right;font-variant-numeric:tabular-nums}
td:first-child,th:first-child{text-align:left}p{margin:.3em 0}.plots{display:flex;flex-wrap:wrap;gap:1em}h2{margin-top:2em}small{color:#666}`

// HTML writes a page of all tables and plots.
func HTML(out io.Writer, title string, tables []Table) error {
	var b strings.Builder
	e := html.EscapeString
	fmt.Fprintf(&b, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>%s</title><style>%s</style></head><body><h1>%s</h1>\n", e(title), style, e(title))
	for i := range tables {
		t := &tables[i]
		fmt.Fprintf(&b, "<h2 id=\"%s-%d\">%s: %s</h2>\n<p>Answers %s.</p>\n<p><small>%s</small></p>\n<table><tr>", e(t.Name), i, e(t.Name), e(t.Title), e(t.Answers), e(t.Parameters))
		for _, c := range t.Columns {
			fmt.Fprintf(&b, "<th>%s</th>", e(c))
		}
		b.WriteString("</tr>\n")
		for _, row := range t.Rows {
			b.WriteString("<tr>")
			for _, c := range row {
				fmt.Fprintf(&b, "<td>%s</td>", e(cell(c)))
			}
			b.WriteString("</tr>\n")
		}
		b.WriteString("</table>\n")
		if len(t.Notes) > 0 {
			b.WriteString("<ul>")
			for _, n := range t.Notes {
				fmt.Fprintf(&b, "<li>%s</li>", e(n))
			}
			b.WriteString("</ul>\n")
		}
		b.WriteString("<div class=\"plots\">")
		for j := range t.Plots {
			b.WriteString(t.Plots[j].SVG())
		}
		b.WriteString("</div>\n")
	}
	b.WriteString("</body></html>\n")
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}
