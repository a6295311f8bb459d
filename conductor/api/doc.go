// Package api is the conductor's API: Mooncake Conductor's calls over HTTP, and the same
// over gRPC (conductorpb). What it is in front of is an [Indexer].
//
// # The contract
//
// A client of Mooncake Conductor works unchanged. In JSON that is the documented
// contract: /register, /unregister, /query, /query_by_hash, /services and /global_view,
// with its defaults (no tenant is "default", null is as if left out), its statuses and
// its texts. With Content-Type application/msgpack it is that of its C++ variant, whose
// answers have another shape and whose unknown fields are refused. Answers have more
// fields than the contract, and none of another meaning.
//
// Beyond it: a query's tokens may be the body itself (application/octet-stream,
// little-endian in 32 bits; the other fields are in the address), many queries may be in
// one body (/query_batch), a block size may be left out, /register takes an engine's
// address in place of an endpoint, errors are JSON for who accepts that by name, and
// there are /stats and /snapshot.
//
// # Bounds
//
// Bodies are bounded, one by one and all that are under way together; so are texts,
// batches, and the depth of msgpack. A body is read whole and decoded where it lies:
// decoders keep nothing of it but copies, except a query's tokens, which are the index's
// to read until it answers. gRPC reads messages whole by itself: what has come in over its
// connections and was read by no call is bounded, too (arrivals), and a query is charged for
// what it will have in memory before it is decoded (chargingCodec).
//
// Tried and not taken: encoding/json for queries. It took most of a query's time.
package api
