// Package router is an OpenAI-compatible reverse proxy in front of engines that sends
// each request where scheduler, index and fleet say, and an API for gateways that only
// want to be told where.
//
// # A request
//
//  1. Its body is read, within limits, and what matters is found in it; it is not parsed
//     as a whole, and is sent on as it came unless something has to be put into it.
//  2. Its token ids are asked from an engine's own /tokenize and remembered by content, so
//     that template and ids are the engine's. After a deadline it is routed by load alone;
//     the answer is remembered for the next time.
//  3. The index says who holds how much of it, and the scheduler decides. Facts, decision
//     and the count of what was given out are under one lock, so that requests that come
//     together see each other.
//  4. It is sent, and the answer passed on as it comes. Until the first byte of the body
//     has come nothing was said to the client, so that what fails before is sent to
//     another engine.
//
// Prefill and decode apart: a prefill engine computes the prompt and stores it, the
// router waits until the index says so (or a deadline), and a decode engine loads it from
// the store they share. The decode side is checked anew before the second step.
//
// # Promises
//
// An engine's death ends its own streams, no others. No request waits for a poll, nor for
// an index. What is kept has bounds: token ids by bytes, decisions and contexts by number,
// requests by number and by size; beyond them clients get 413, 429 or 503 and are told
// when to come again.
//
//	lock         guards                              taken
//	placer.mu    the scheduler, with facts           before engine.mu of fleet
//	others       one map or ring each                before none
package router
