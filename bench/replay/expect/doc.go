// Package expect computes how many tokens of a prompt a prefix cache that never
// evicts must have, by vLLM's rules: whole blocks of the engine, from the
// prompt's begin up to the first that is missing, and never the prompt's last
// token, which is computed anew for its logits.
//
// Requests overlap, so that for each there are two figures. What an earlier
// request had got its first token for before this one was sent, this one must
// find. What was sent before this one's first token came, it may find: an engine
// shares blocks between prompts that it computes side by side, and schedules
// requests in another order than they were sent in. One at a time the two are
// equal, and equal to what the trace says.
package expect
