// Package unary carries the unary calls of a gRPC service over Unix sockets
// without HTTP/2. A call is one write and one read at either end, on a socket
// that it has to itself, where gRPC passes it through six goroutines: a load
// asks the store while a request waits, and every hand-over between threads is
// paid for in time to first token (bench_test.go has both side by side).
//
// Services, messages and status codes are gRPC's; only the transport is other.
// Who wants streams, reflection or a client of another language uses the gRPC
// socket beside it.
//
// A request is a u32 length of what follows, a u8 length of the method's full
// name, the name, and the message. A reply is a u32 length of what follows, a u8
// status code, and the message or, for a code other than 0, the error's text.
// Integers are little-endian.
package unary
