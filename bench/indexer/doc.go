// Package indexer measures KV-cache indexers beside each other, with the same events and
// the same questions, by turns: this project's and the peers'.
//
// Two ways:
//
//	in process   the library as a Go program uses it: prefixindex behind its decoder,
//	             and llm-d-kv-cache. No socket, no HTTP.
//	on the wire  the service as engines and routers use it: mooncake-conductor, and
//	             dynamo.indexer. Events come over ZeroMQ, questions over HTTP.
//
// In each round every system starts with nothing and is loaded, in an order that is
// drawn; figures of a round are compared with each other. Then all stay loaded, and
// questions are asked of one after the other. Every answer is checked.
//
// Beside the time that passed stands the time that the indexer's process used processors
// for: it says the same on a machine that others use, too.
//
// Memory is what is in use on the heap of a Go library after a collection, and the
// resident memory of a service: what the operating system counts, garbage and empty
// buffers included.
package indexer
