// Package api is the conductor's API: Mooncake Conductor's over HTTP, in JSON and in
// msgpack, and the same over gRPC.
package api
