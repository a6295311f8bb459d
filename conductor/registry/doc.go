// Package registry knows which services there are: the streams of KV events that are
// followed. It checks what a service says of itself, tells one from another by the keys of
// Mooncake Conductor's contract, and sees what can't be together: two publishers at one
// port, a replay socket where somebody else publishes. Sources asks an engine itself where
// it publishes.
package registry
