// Package follow keeps one stream of KV-cache events whole: it puts live messages and
// replayed ones in order, asks for what is missing, sees that a publisher was started
// anew, and knows how much of the stream's past is known. It is pure: whoever has the
// sockets and the clock calls it, and does what it returns.
//
// # Rules
//
// At the start everything that the publisher still has is asked for; live messages wait
// for the end of the answer. A number that is skipped is asked for at once, together with
// the one before it, which must have what was applied under it; what is behind waits. Where
// the missing ones are there no more, or nobody answers, nothing that was known can be trusted: blocks may have gone unheard. All is forgotten then, and
// the stream goes on from the oldest message that there is; where nobody answered, all is
// asked for again, later each time, whatever is asked for and answered in between, and takes
// the place of what is known when it comes and goes back further. An answer that did not come
// and cost nothing is asked for again as it was.
//
// Numbers of live messages only rise. One that does not is of a publisher that was
// started anew: all is forgotten, and everything asked for. A replay may be ahead of the
// live messages, which then come again; if one of them has another content than what was
// replayed under its number, the publisher is another one, too.
//
// Where the connection was lost, or a stream is gone on with that was followed before, what
// was applied last is asked for again: the publisher that has it is the same.
package follow
