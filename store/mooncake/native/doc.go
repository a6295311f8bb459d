// Package native is what the engines over Mooncake's own client have in common,
// whether they reach it in a process of its wheel (package sideproc) or in its C
// library (package mooncakec): how a put is said, what an answer leaves open, the
// client's variables, and the notice of how it is.
package native
