// Package report prints what experiments found: tables as text and JSON, and all of
// them with their plots on one page.
package report
