// Package router measures what the conductor's router adds to the time until the first
// byte of an answer: requests of an open loop go by turns straight to an engine and
// through the router, in one run. The engines answer at once, so that nothing is in the
// times but the way; index, scheduler and proxy are the real ones, over TCP, all in this
// process.
package router
