// Package fleet knows the engines that requests may be sent to: which are well, what
// each has to do, and how fast it does it.
//
// # Two sources
//
// What the router sends is counted when it is sent, and taken off when it ends: that is
// exact and has no delay. A poll of the engine's /metrics only adds what others sent: the
// requests that an engine says it has, less those that are ours. So two requests that
// arrive within one interval of the poll see each other, and no request ever waits for a
// poll.
//
// # Health
//
// An engine is out after a few polls in a row that failed, and at once when nobody
// listens at its address; it is back after a few that did well. A connection that broke
// has the engine polled at once, and that poll decides alone.
//
// # Speeds
//
// Two linear models are fitted online, one for prefills and one for the step of a
// decoding batch, with forgetting, weights of relative errors, and no coefficient below
// zero; an outlier counts no more than a deviation that is usual. What is observed of prefills is
// busy periods: from the first prompt that an idle engine gets until it has answered
// all, the sum of what the prompts cost is the time that passed, whatever the order and
// however they were batched. Engines differ from the models by a factor each.
//
//	lock        guards                                   taken
//	engine.mu   an engine's health, load and flights     before none
//	costs.mu    the models                               with engine.mu, or alone
package fleet
