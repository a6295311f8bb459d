// Package client asks an OpenAI-compatible server for streamed completions of
// prompts of token ids, and says what went wrong when something did.
//
// Whatever the server sends is untrusted: lines, events, answers and pages have
// limits, a stream that brings no token for too long is given up, and one that
// ends without its closing mark is an error, never a short answer.
package client
