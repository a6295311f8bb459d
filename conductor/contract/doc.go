// Package contract has the values that the conductor's parts exchange: services whose
// events are followed, questions about prefixes, and answers. The words are those of
// Mooncake Conductor's API, which conductor/api speaks; the units are tokens.
//
// The package is pure: it has no goroutine, no socket and no clock.
package contract
