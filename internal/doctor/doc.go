// Package doctor looks for what commonly keeps the sidecar from working, or from
// working well, on a machine: too little memory, a runtime directory that others
// may enter, a cache that would die with its container, versions that do not
// fit. It changes nothing.
//
// A check is a function of a [System], which is all it sees of the machine: a
// file system, the environment, and a few questions. So every finding can be
// provoked in a test.
package doctor
