// Package hugepage asks for huge pages for memory that is read at random. A table of 64
// MiB takes 16384 small ones, far more than a processor remembers the places of: each
// read then waits for its address before it waits for its line, in a virtual machine the
// longer of the two.
package hugepage
