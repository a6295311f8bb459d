// Package storetest has a store in memory, for tests of what uses a store, and
// the behaviour that every store must show.
package storetest
