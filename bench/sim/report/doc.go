// Package report prints what experiments found: tables as text and JSON, plots as
// SVG, and all of them on one page of HTML that needs nothing from elsewhere.
package report
