// Package copying is what the mappings of all devices have in common: who copies a
// batch and who waits for it, and what a fault of mapped memory becomes.
package copying
