// Package report writes what a replay measured: JSON for programs, CSV with a line
// for each request, a few lines of text for people, and a page of HTML with plots
// that asks nothing of the network.
package report
