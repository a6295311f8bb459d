// Package standin is a server for tests of the replay: it answers completions as
// vLLM does, with a prefix cache over token blocks that never evicts, and fails as
// it is told to. Transport serves it without a socket, so that time may be virtual
// (testing/synctest).
package standin
