// Package prompt makes prompts of token ids from a trace's requests.
//
// INVARIANT: equal hash ids give equal tokens, at any place and in any run with
// the same seed; different ids give blocks that differ within the first block of
// the engine. So two prompts share in an engine's prefix cache what the trace says
// they share, and nothing else.
//
// A trace's block is 512 tokens. A scale shrinks or stretches it; the scaled block
// is a whole number of the engine's blocks, or else ids that differ would share
// blocks, and equal ones would not. What is behind the prompt's last full block
// shrinks alike and keeps at least one token.
package prompt
