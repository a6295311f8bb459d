// Package stats reduces numbers to what tables show.
package stats
