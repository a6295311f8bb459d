// Package wire is the codec of the lookup channel between a scheduler and
// mooncake-lookupd. What the in-tree Mooncake connector says is taken and
// answered byte for byte as in vllm 0.32's mooncake/store/protocol.py; our
// additions have tags of their own, which an in-tree server answers with an
// error. docs/protocol.md has the table of messages.
//
// Numbers are big-endian. Parsed requests are views of the frames. Nothing here
// panics on bytes from outside.
package wire
