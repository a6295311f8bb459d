// Package lint holds the house rules that compilers and linters do not check:
// which layer may import which, where cgo and unsafe may live, and how files
// look. The rules run as tests; ARCHITECTURE.md says why they are so.
package lint
